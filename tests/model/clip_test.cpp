// SPDX-License-Identifier: MIT
#include "model/clip/clip.h"

#include <torch/torch.h>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "data/pictures/preprocess.h"
#include "io/files/atomic_file.h"
#include "model/clip/clip_encoder.h"
#include "model/clip/x_clip.h"
#include "model/clip_support.h"
#include "support/fixture.h"
#include "support/message_of.h"
#include "support/rounding_noise.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

ClipNetworkConfig small_config(bool resnet = false) {
  ClipNetworkConfig config;
  config.embed_dim = 6;
  config.vision_cfg = {.layers = int64_t{2},
                       .width = 8,
                       .head_width = 4,
                       .mlp_ratio = 2,
                       .patch_size = 4,
                       .image_size = 32};
  if (resnet) config.vision_cfg.layers = std::vector<int64_t>{1, 1, 1, 1};
  config.text_cfg = {
      .context_length = 8, .vocab_size = 520, .width = 8, .heads = 2, .layers = 2, .mlp_ratio = 2};
  return config;
}

std::shared_ptr<ClipImpl> small_clip(bool resnet = false) {
  torch::manual_seed(3);
  return std::make_shared<ClipImpl>(small_config(resnet));
}

at::Tensor some_tokens() {
  return at::tensor({518, 7, 9, 519, 0, 0, 0, 0, 518, 5, 519, 0, 0, 0, 0, 0}, at::kLong)
      .view({2, 8});
}

TEST_CASE("a frozen CLIP stays in eval mode, has no gradients and the reference's names") {
  torch::nn::Module model;
  const auto clip = small_clip();
  clip->train();
  model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(clip));
  CHECK_FALSE(clip->is_training());
  model.train();
  CHECK(model.is_training());
  for (const auto& module : clip->modules()) CHECK_FALSE(module->is_training());
  REQUIRE(model.parameters().size() > 20);
  for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
  CHECK(model.named_parameters().contains("clip.clip.visual.conv1.weight"));
  CHECK(model.named_parameters().contains("clip.clip.logit_scale"));
}

TEST_CASE("tokens after the end of a text change neither its feature nor its encodings") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens();
  at::Tensor others = tokens.clone();
  others.select(0, 1).narrow(0, 3, 5).fill_(17);
  expect_close(clip->text_features(others), clip->text_features(tokens), 1e-6, "features");
  const ClipTexts seen = clip->embed_text(others), expected = clip->embed_text(tokens);
  CHECK(at::equal(seen.mask, expected.mask));
  CHECK(seen.mask.sum(-1).equal(at::tensor({4, 3}, at::kLong)));
  expect_close(seen.encodings, expected.encodings, 1e-6, "encodings");
}

TEST_CASE("texts are cut to the longest of them, which changes no feature") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens();
  CHECK(trimmed_tokens(tokens).equal(tokens.narrow(1, 0, 4)));
  expect_close(clip->text_features(tokens.narrow(1, 0, 4)), clip->text_features(tokens), 0, "cut");
  CHECK(trimmed_tokens(at::empty({0, 8}, at::kLong)).size(0) == 0);
}

TEST_CASE("token 0 inside a text has no encoding, and texts longer than the context are cut") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor({518, 0, 9, 4, 3, 2, 1, 8, 519, 6}, at::kLong).unsqueeze(0);
  const ClipTexts texts = clip->embed_text(tokens);
  CHECK(texts.encodings.sizes() == at::IntArrayRef({1, 8, 8}));
  CHECK_FALSE(texts.mask[0][1].item<bool>());
  CHECK(texts.encodings[0][1].abs().max().item<double>() == 0);
  CHECK(texts.mask.sum().item<int64_t>() == 7);
}

TEST_CASE("pictures smaller than the CLIP's and texts longer than its context are refused") {
  const auto clip = small_clip();
  CHECK_THAT(test::message_of<DataError>([&] {
               clip->embed_image(at::zeros({1, 3, 31, 31}));
             }),
             Contains("[1, 3, 31, 31]") && Contains("H at least 32"));
  CHECK_THROWS_WITH(clip->embed_image(at::zeros({1, 3, 40, 32})), Contains("[1, 3, 40, 32]"));
  at::Tensor tokens = at::zeros({1, 9}, at::kLong);
  CHECK_NOTHROW(clip->text_features(tokens));  // ends in the context, as far as anybody looks
  tokens[0][8] = 519;
  CHECK_THROWS_WITH(clip->text_features(tokens), Contains("[1, 9]") && Contains("L up to 8"));
}

TEST_CASE("the loss of equal pairs is the logarithm of their number, and follows the scale") {
  const at::Tensor same = pair_features(at::ones({4, 3}), 2 * at::ones({4, 3}));
  CHECK(same.sizes() == at::IntArrayRef({4, 2, 3}));
  const at::Tensor scale = at::full({}, std::log(100.0));
  CHECK(contrastive_loss(same, scale).item<double>() == Approx(std::log(4.0)).epsilon(1e-6));
  const at::Tensor own = pair_features(at::eye(4), at::eye(4));
  // 100 for the own one, 0 for the three others
  CHECK(contrastive_loss(own, scale).item<double>() == Approx(0).margin(1e-6));
  CHECK(contrastive_loss(own, at::zeros({})).item<double>() ==
        Approx(std::log(std::exp(1.0) + 3) - 1).epsilon(1e-6));
}

TEST_CASE("weights begin with open_clip's deviations") {
  torch::manual_seed(0);
  ClipNetworkConfig config = small_config();
  config.text_cfg.width = 64;
  config.text_cfg.layers = 2;
  const auto clip = std::make_shared<ClipImpl>(config);
  const auto parameters = clip->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  CHECK(deviation("token_embedding.weight") == Approx(0.02).epsilon(0.05));
  CHECK(deviation("positional_embedding") == Approx(0.01).epsilon(0.15));
  CHECK(deviation("transformer.resblocks.1.attn.in_proj_weight") == Approx(0.125).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.attn.out_proj.weight") == Approx(0.0625).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.mlp.c_fc.weight") ==
        Approx(1 / std::sqrt(128)).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.mlp.c_proj.weight") == Approx(0.0625).epsilon(0.05));
  CHECK(clip->logit_scale.item<double>() == Approx(std::log(1 / 0.07)));
}

// CLIPs in the files of others give the features that they give there, and come back from our own files.
// Half the features of a file in float16 differ in the last bit that a float32 sum leaves.
constexpr double kTolerance = 2e-5;

/// Folder and file of each kind.
constexpr std::pair<const char*, const char*> kFiles[] = {
    {"openai", "tiny.pt"},
    {"open_clip", "open_clip_model.safetensors"},
    {"open_clip", "epoch_3.pt"},
    {"open_clip_resnet", "open_clip_model.safetensors"},
    {"hugging_face", "model.safetensors"}};

std::shared_ptr<ClipImpl> built(const ClipFile& file, const std::string& where) {
  auto clip = std::make_shared<ClipImpl>(file.config);
  load_state_dict(*clip, file.weights, "", /*strict=*/true, where);
  clip->eval();
  return clip;
}

void check_features(ClipImpl& clip, const std::string& folder) {
  const Fixture expected = load_fixture(folder + "/expected.safetensors");
  const auto side = expected.json.at("side").get<int64_t>();
  const at::Tensor tokens = expected.tensor("tokens");
  const torch::NoGradGuard no_grad;
  CHECK(clip.image_size() == side);
  expect_close(clip.image_features(wave({tokens.size(0), 3, side, side}, 0.37, 0, 0.5, 0.5)),
               expected.tensor("image_features"),
               kTolerance,
               "image");
  expect_close(clip.text_features(tokens), expected.tensor("text_features"), kTolerance, "text");
}

TEST_CASE("CLIPs of OpenAI, open_clip and Hugging Face give the features they give there") {
  for (const auto& [name, file] : kFiles) {
    const std::string folder = fixture_folder("clip_files") + "/" + name,
                      path = folder + "/" + file;
    INFO(path);
    const ClipFile read = read_clip_file(path);
    CHECK_FALSE(read.merges.has_value());
    check_features(*built(read, path), folder);
  }
}

TEST_CASE("a CLIP that we write comes back with its config, its vocabulary and every bit") {
  const TempDir dir;
  for (const auto& [name, file] : kFiles) {
    const std::string folder = fixture_folder("clip_files") + "/" + name;
    INFO(folder);
    ClipFile read = read_clip_file(folder + "/" + file);
    read.merges = "t h\nth e</w>\n";
    for (const char* own : {"own.safetensors", "own.pt"}) {
      write_clip_file(dir / own, read);
      const ClipFile again = read_clip_file(dir / own);
      CHECK(open_clip_config_of(again.config) == open_clip_config_of(read.config));
      CHECK(again.merges == read.merges);
      REQUIRE(again.weights.size() == read.weights.size());
      for (size_t i = 0; i < again.weights.size(); ++i) {
        CHECK(again.weights[i].first == read.weights[i].first);
        CHECK(at::equal(again.weights[i].second, read.weights[i].second));
      }
      check_features(*built(again, own), folder);
    }
    CHECK(std::filesystem::exists(dir / "open_clip_config.json"));
  }
}

// Run by check_clip_with_python.py, which reads the files by open_clip.
TEST_CASE("files for open_clip", "[.][write_for_python]") {
  const char* folder = std::getenv("DALLE2_PYTHON_CHECK_DIR");
  REQUIRE(folder != nullptr);
  for (const bool resnet : {false, true}) {
    ClipNetworkConfig config = clip_config_of(
        load_fixture(fixture_folder("clip") + (resnet ? "/case_02" : "/case_04") + ".safetensors")
            .json.at("config"));
    config.image_mean = {0.5, 0.25, 0.75};
    const auto clip = filled_clip(config);
    clip->eval();
    const std::string out = std::string(folder) + (resnet ? "/resnet" : "/vit");
    std::filesystem::create_directories(out);
    write_clip_file(out + "/open_clip_model.safetensors", {config, state_dict(*clip), {}});
    write_clip_file(out + "/open_clip_pytorch_model.pt", {config, state_dict(*clip), {}});
    const int64_t side = config.vision_cfg.image_size;
    at::Tensor tokens = at::zeros({1, config.text_cfg.context_length}, at::kLong);
    tokens[0][0] = config.text_cfg.start_token();
    tokens[0][1] = 7;
    tokens[0][2] = config.text_cfg.end_token();
    const at::Tensor images = wave({1, 3, side, side}, 0.37, 0, 0.5, 0.5);
    const torch::NoGradGuard no_grad;
    write_safetensors(out + "/features.safetensors",
                      {{"images", images},
                       {"tokens", tokens},
                       {"image_features", clip->image_features(images)},
                       {"text_features", clip->text_features(tokens)}});
  }
}

// CLIPs of x-clip of random configurations against x-clip and dalle2-pytorch's adapter.
constexpr size_t kLeastXClips = 8;

/// A case of tests/parity/make_x_clip.py.
struct XClipCase {
  explicit XClipCase(const std::string& path)
      : fixture(load_fixture(path)),
        clip(std::make_shared<XClipImpl>(config_in_file<XClipConfig>(
            Json::parse(fixture.json.at("config").dump()), fixture.path))) {
    fill_parameters(*clip);
    clip->eval();
    const auto side = fixture.json.at("side").get<int64_t>();
    tokens = fixture.tensor("tokens");
    images = wave(
        {tokens.size(0), 3, side, side}, 0.61, fixture.json.at("phase").get<double>(), 0.5, 0.5);
  }

  void expect(const at::Tensor& actual, const char* name) const {
    // Sums in another order: a few roundings of float32 a layer.
    expect_within_noise(actual, fixture, name, 2e-5);
  }

  Fixture fixture;
  std::shared_ptr<XClipImpl> clip;
  at::Tensor images, tokens;
};

template <class Check>
void for_each_x_clip(const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder("x_clip"), kLeastXClips)) {
    XClipCase one(path);
    INFO(path << " " << one.fixture.json.at("config").dump());
    check(one);
  }
}

TEST_CASE("embeddings and encodings of an x-clip's CLIP are those of the reference's adapter") {
  for_each_x_clip([](XClipCase& one) {
    const torch::NoGradGuard no_grad;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*one.clip)) names.push_back(name);
    CHECK(names == one.fixture.json.at("names").get<std::vector<std::string>>());
    one.expect(one.clip->embed_image(one.images), "image_embed");
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    one.expect(texts.embed, "text_embed");
    one.expect(texts.encodings, "text_encodings");
    CHECK(at::equal(texts.mask, (one.fixture.tensor("text_encodings") != 0).any(-1)));
  });
}

TEST_CASE("in a model an x-clip's CLIP is frozen, and drops no patches while that trains") {
  for_each_x_clip([](XClipCase& one) {
    torch::nn::Module model;
    model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(one.clip));
    model.train();
    CHECK(state_dict(model).front().first == "clip.clip.temperature");
    for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
    one.expect(one.clip->embed_image(one.images), "image_embed");
  });
}

TEST_CASE("an x-clip's CLIP sees what fills up a text, so nothing of it is left out") {
  const XClipCase one(fixture_files(fixture_folder("x_clip"), kLeastXClips).front());
  const torch::NoGradGuard no_grad;
  const at::Tensor short_texts = at::zeros_like(one.tokens);
  short_texts.select(1, 0).fill_(1);
  short_texts.select(1, 1).fill_(2);
  CHECK(one.clip->trimmed(short_texts).equal(short_texts));
  const at::Tensor whole = one.clip->embed_text(short_texts).embed;
  const at::Tensor cut = one.clip->embed_text(short_texts.narrow(1, 0, 2)).embed;
  CHECK((whole - cut).abs().max().item<double>() > 1e-4);
  CHECK_THROWS_AS(one.clip->embed_image(at::zeros({1, 3, 1, 1})), DataError);
}

// CLIPs of random configs over all keys that open_clip and Hugging Face know: computed as there, or refused
// by the name of the key. Made by tests/parity/make_clip_configs.py.
// Of the largest feature: sums in another order, a few roundings of float32 a layer.
constexpr double kLibraryTolerance = 1e-4;

/// The files of a case. @return the path of the weights
std::string put_case(const Fixture& given, const TempDir& dir) {
  const std::string path = dir / "clip.safetensors";
  write_safetensors(path, given.below("weights."));
  write_file_atomically(dir / given.json.at("config_name").get<std::string>(),
                        given.json.at("config").dump());
  return path;
}

TEST_CASE("a CLIP of any config gives the features of its library, or is refused by the key") {
  for (const std::string& file : fixture_files(fixture_folder("clip_configs"), 42)) {
    const Fixture given = load_fixture(file);
    INFO(file << ": " << given.json.dump());
    const TempDir dir;
    const std::string path = put_case(given, dir);
    if (given.json.at("refused").is_string()) {
      std::string key = given.json.at("refused");
      const std::string ours = "/image_";
      if (key.starts_with(ours)) key.replace(0, ours.size(), "/preprocess_cfg/");
      CHECK_THAT(test::message_of<DataError>([&] { read_clip_file(path); }),
                 Catch::Contains("config.json: ") && Catch::Contains(key));
      continue;
    }
    const ClipFile read = read_clip_file(path);
    ClipImpl clip(read.config);
    load_state_dict(clip, read.weights, "", /*strict=*/true, path);
    clip.eval();
    const torch::NoGradGuard no_grad;
    const auto side = given.json.at("side").get<int64_t>();
    const at::Tensor tokens = given.tensor("tokens");
    expect_close(clip.image_features(wave({tokens.size(0), 3, side, side}, 0.37, 0, 0.5, 0.5)),
                 given.tensor("image_features"),
                 kLibraryTolerance,
                 "image");
    expect_close(
        clip.text_features(tokens), given.tensor("text_features"), kLibraryTolerance, "text");
    const Preprocess preprocess(clip_preprocessing(clip.preprocessing()));
    for (const char* number : {"0", "1", "2"}) {
      INFO("picture " << number);
      const at::Tensor bytes = given.tensor(std::string("picture.") + number);
      const at::Tensor seen = given.tensor(std::string("seen.") + number);
      const std::string content(reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>()),
                                static_cast<size_t>(bytes.numel()));
      const Image image = preprocess.apply(content, "picture", [] { return 0U; });
      CHECK(image.width == side);
      CHECK(image.pixels == std::vector<uint8_t>(seen.const_data_ptr<uint8_t>(),
                                                 seen.const_data_ptr<uint8_t>() + seen.numel()));
    }
  }
}

}  // namespace
}  // namespace dalle2::test
