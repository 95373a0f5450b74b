// SPDX-License-Identifier: MIT
// Files of other programs for --clip, and `convert --open-clip`. Files of runs: tests/e2e/clip_test.py.
#include "run/checkpoints/clip_weights.h"

#include <torch/torch.h>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"
#include "io/text/clip_vocabulary.h"
#include "model/clip/x_clip.h"
#include "support/captured_log.h"
#include "support/fixture.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

std::string foreign_file(const std::string& name) {
  return fixture_folder("clip_files") + "/" + name;
}

/// A CLIP for OpenAI's vocabulary, too small for anything.
ClipFile smallest_clip() {
  ClipFile file;
  file.config.embed_dim = 4;
  file.config.vision_cfg = {.layers = int64_t{1},
                            .width = 4,
                            .head_width = 4,
                            .mlp_ratio = 1,
                            .patch_size = 4,
                            .image_size = 4};
  file.config.text_cfg = {.context_length = 4,
                          .vocab_size = kClipVocabSize,
                          .width = 1,
                          .heads = 1,
                          .layers = 1,
                          .mlp_ratio = 1};
  file.weights = state_dict(ClipImpl(file.config));
  return file;
}

TEST_CASE("a CLIP is meant by its path, or by OpenAI's name where their package keeps it") {
  const TempDir dir;
  const std::string path = dir / "clip.pth";
  write_file_atomically(path, "a CLIP");
  CHECK(clip_file_of(path) == path);
  CHECK_THROWS_WITH(clip_file_of(dir / "none.pth"), Contains("none.pth: no such file"));
  CHECK_THROWS_WITH(clip_file_of("ViT-H-14"),
                    Contains("ViT-H-14: no such file\n  Give the file of a CLIP. Of a model of "
                             "open_clip it is open_clip_model.safetensors, with its "
                             "open_clip_config.json beside it."));
  const char* const home = std::getenv("HOME");
  const std::string earlier = home == nullptr ? "" : home;
  ::setenv("HOME", dir.path().c_str(), 1);
  CHECK_THROWS_WITH(clip_file_of("ViT-L/14@336px"),
                    Contains("ViT-L/14@336px: no such file, and OpenAI's model of this name is not "
                             "at " +
                             (dir / ".cache/clip/ViT-L-14-336px.pt")));
  std::filesystem::create_directories(dir / ".cache/clip");
  write_file_atomically(dir / ".cache/clip/ViT-L-14.pt", "a CLIP");
  CHECK(clip_file_of("ViT-L/14") == dir / ".cache/clip/ViT-L-14.pt");
  ::setenv("HOME", earlier.c_str(), 1);
}

TEST_CASE("a CLIP of others comes frozen, with the vocabulary that its file carries") {
  const TempDir dir;
  ClipFile file = read_clip_file(foreign_file("open_clip/open_clip_model.safetensors"));
  file.merges = "";
  const std::string path = dir / "clip.safetensors";
  write_clip_file(path, file);
  const CapturedLog log;
  const LoadedClip loaded = load_clip_file(path);
  CHECK(loaded.tokenizer->vocab_size() == 514);
  CHECK_FALSE(loaded.clip->is_training());
  for (const at::Tensor& parameter : loaded.clip->parameters())
    CHECK_FALSE(parameter.requires_grad());
  const StateDict weights = state_dict(*loaded.clip);
  for (const auto& [name, tensor] : file.weights) {
    const at::Tensor* found = find_tensor(weights, name);
    REQUIRE(found != nullptr);
    CHECK(at::equal(*found, tensor));
  }
  CHECK(
      log.count(": embeddings of 6 values, pictures of 12 pixels, 6 tokens; heads 2 2, QuickGELU, "
                "mean ") == 1);
  // Each library's tokenizer has words of its own for the tokens that enclose a text.
  CHECK(loaded.tokenizer->encode("<end_of_text>") == std::vector<int64_t>{513});
  const std::string other = dir / "model.safetensors";
  write_safetensors(other,
                    read_safetensors(foreign_file("hugging_face/model.safetensors")).tensors,
                    {{kClipMergesKey, ""}});
  write_file_atomically(dir / "config.json", read_file(foreign_file("hugging_face/config.json")));
  CHECK(load_clip_file(other).tokenizer->encode("<|endoftext|>") == std::vector<int64_t>{513});
}

TEST_CASE("a CLIP of others without a vocabulary needs OpenAI's, and a text tower that fits it") {
  CHECK_THAT(test::message_of<DataError>([&] { load_clip_file(foreign_file("openai/tiny.pt")); }),
             Contains("tiny.pt: expected a text tower for OpenAI's vocabulary of 49408 tokens") &&
                 Contains("got a text tower for 514 tokens"));
  const TempDir dir;
  const std::string path = dir / "clip.safetensors";
  write_clip_file(path, smallest_clip());
  write_file_atomically(dir / kClipMergesName, "#version: 0.2\nt h\n");
  CHECK_THROWS_WITH(load_clip_file(path),
                    Contains("merges.txt: not the vocabulary of OpenAI's CLIP"));
}

std::string x_clip_file(const std::string& name) {
  return fixture_folder("x_clip") + "/file/" + name;
}

/// @param expected by tests/parity/make_x_clip.py
void expect_embeddings(const LoadedClip& loaded, const Fixture& expected) {
  constexpr double kTolerance = 2e-5;  // sums in another order: a few roundings of float32 a layer
  CHECK(loaded.text_len() == 12);
  CHECK(loaded.text_room() == 12);
  for (const at::Tensor& parameter : loaded.clip->parameters())
    CHECK_FALSE(parameter.requires_grad());
  const at::Tensor tokens =
      loaded.tokens_of(expected.json.at("texts").get<std::vector<std::string>>());
  CHECK(tokens.equal(expected.tensor("tokens")));
  const torch::NoGradGuard no_grad;
  const ClipTexts texts = loaded.clip->embed_text(tokens);
  expect_close(texts.embed, expected.tensor("text_embed"), kTolerance, "text_embed");
  expect_close(texts.encodings, expected.tensor("text_encodings"), kTolerance, "text_encodings");
  const at::Tensor pictures =
      wave({3, 3, 8, 8}, 0.61, expected.json.at("phase").get<double>(), 0.5, 0.5);
  expect_close(loaded.clip->embed_image(pictures),
               expected.tensor("image_embed"),
               kTolerance,
               "image_embed");
}

TEST_CASE("a CLIP of x-clip takes texts and pictures as the reference's tokenizer and adapter do") {
  const CapturedLog log;
  expect_embeddings(load_clip_file(x_clip_file("x_clip.pt")),
                    load_fixture(x_clip_file("expected.safetensors")));
  CHECK(log.count("x_clip.pt: embeddings of 6 values, pictures of 8 pixels, ") == 1);
  CHECK(log.count("; heads 1 2, ") == 1);
}

TEST_CASE("a text has at most the 256 tokens that the reference's tokenizer makes") {
  XClipConfig config;
  config.dim_text = config.dim_image = config.dim_latent = 4;
  config.num_text_tokens = 600;
  config.text_enc_depth = config.visual_enc_depth = 1;
  config.text_seq_len = 300;
  LoadedClip loaded = load_clip_file(x_clip_file("x_clip.pt"));
  loaded.clip = std::make_shared<XClipImpl>(config);
  CHECK(loaded.text_len() == 256);
  CHECK(loaded.tokens_of({"a"}).size(1) == 256);
}

TEST_CASE("an x-clip's CLIP is refused for a vocabulary that it does not know") {
  const TempDir dir;
  const std::string path = dir / "x_clip.pt";
  RawClip raw = read_raw_clip(x_clip_file("x_clip.pt"));
  raw.texts.at(kClipMergesKey) += "\na t</w>";
  Dict root;
  root.set("state_dict", to_dict(raw.tensors));
  root.set(kClipMergesKey, raw.texts.at(kClipMergesKey));
  write_pth(path, root);
  write_file_atomically(dir / kXClipConfigName, read_file(x_clip_file(kXClipConfigName)));
  CHECK_THAT(test::message_of<DataError>([&] { load_clip_file(path); }),
             Contains("x_clip.pt: num_text_tokens: expected at least 518, the tokens of its "
                      "vocabulary, got 517"));
}

TEST_CASE("where a config says x-clip, the file has to be of x-clip") {
  CHECK_THAT(test::message_of<DataError>([&] {
               load_clip_file(foreign_file("openai/tiny.pt"), {.arguments = XClipConfig{}});
             }),
             Contains("tiny.pt: expected the state dict of a CLIP of x-clip"));
  CHECK_THROWS_WITH(load_clip_file(x_clip_file("x_clip.pt"), {.arguments = XClipConfig{}}),
                    Contains("x_clip.pt: does not fit the model that the config describes") &&
                        Contains("token_emb.weight: expected [10000, 512], got [518, 6]"));
}

TEST_CASE("a CLIP of x-clip takes no hints for CLIPs of others") {
  const std::string path = x_clip_file("x_clip.pt");
  CHECK_THROWS_AS(load_clip_file(path, {.quick_gelu = true}), ConfigError);
  const std::string why =
      "x_clip.pt: \"quick_gelu\" and \"heads\" have no effect on a CLIP of x-clip: leave them out";
  CHECK_THROWS_WITH(load_clip_file(path, {.quick_gelu = true}), Contains(why));
  CHECK_THROWS_WITH(load_clip_file(path, {.heads = {{1, 1}}}), Contains(why));
}

TEST_CASE("what a CLIP is known by holds the arguments that its weights do not tell") {
  XClipConfig x_clip =
      as_x_clip_file(read_raw_clip(x_clip_file("x_clip.pt")), x_clip_file("x_clip.pt"), {}).config;
  const std::string other =
      clip_sha256(*load_clip_file(x_clip_file("x_clip.pt"), {.arguments = x_clip}).clip);
  x_clip.text_seq_len = 13;
  CHECK(other !=
        clip_sha256(*load_clip_file(x_clip_file("x_clip.pt"), {.arguments = x_clip}).clip));
  ClipNetworkConfig config = smallest_clip().config;
  const ClipImpl plain(config);
  config.quick_gelu = !config.quick_gelu;
  const ClipImpl quick(config);
  for (const auto& parameter : quick.named_parameters())
    parameter.value().data().copy_(plain.named_parameters()[parameter.key()]);
  CHECK(weights_sha256(quick) == weights_sha256(plain));
  CHECK(clip_sha256(quick) != clip_sha256(plain));
}

TEST_CASE("a CLIP is known by how pictures are resized and by the epsilon of norms, too") {
  ClipNetworkConfig config = smallest_clip().config;
  torch::manual_seed(1);
  const std::string plain = clip_sha256(ClipImpl(config));
  const auto changed = [&](auto change) {
    ClipNetworkConfig other = config;
    change(other);
    torch::manual_seed(1);
    return clip_sha256(ClipImpl(other)) != plain;
  };
  CHECK_FALSE(changed([](auto&) {}));
  CHECK(changed([](auto& other) { other.image_resize_mode = "squash"; }));
  CHECK(changed([](auto& other) { other.image_interpolation = "bilinear"; }));
  CHECK(changed([](auto& other) { other.image_fill_color = 1; }));
  CHECK(changed([](auto& other) { other.vision_cfg.norm_kwargs.eps = 1e-6; }));
  CHECK(changed([](auto& other) { other.text_cfg.norm_kwargs.eps = 1e-6; }));
}

TEST_CASE("the CLIP of a run takes no hints, for its file holds its config") {
  const TempDir dir;
  const std::string path = dir / "model.pth";
  Dict root;
  root.set("model", to_dict({{"weight", at::ones({1})}}));
  root.set("config", Dict());
  write_pth(path, root);
  const std::string why =
      "model.pth: --clip-config, \"quick_gelu\" and \"heads\" have no effect on "
      "the CLIP of a run";
  CHECK_THAT(test::message_of<ConfigError>([&] { load_clip_file(path, {.quick_gelu = true}); }),
             Contains(why));
  CHECK_THROWS_WITH(load_clip_file(path, {.config_path = "c.json"}), Contains(why));
  CHECK_THROWS_WITH(load_clip_file(path, {.heads = {{1, 1}}}), Contains(why));
}

TEST_CASE("a file that is no CLIP, and one that is not there, are named") {
  const TempDir dir;
  write_file_atomically(dir / "clip.safetensors", "text");
  CHECK_THAT(test::message_of<DataError>([&] { load_clip_file(dir / "clip.safetensors"); }),
             Contains("clip.safetensors"));
  CHECK_THROWS_WITH(load_clip_file(dir / "none.pt"), Contains("none.pt: no such file"));
  write_file_atomically(dir / "open_clip_config.json", "{}");
  CHECK_THROWS_WITH(
      load_clip_file(dir / "open_clip_config.json"),
      Contains("open_clip_config.json: expected the weights of a CLIP, got a config\n  "
               "Give the file of the weights beside it"));
}

TEST_CASE("a damaged checkpoint of a run says what is damaged, not that it is no CLIP") {
  const TempDir dir;
  const std::string path = dir / "checkpoint.pth";
  Dict root;
  root.set("model", to_dict({{"weight", at::ones({4096})}}));
  root.set("config", Dict());
  write_pth(path, root);
  std::string bytes = read_file(path);
  const size_t ones = bytes.find(std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  REQUIRE(ones != std::string::npos);
  bytes[ones] = 1;
  write_file_atomically(path, bytes);
  CHECK_THROWS_WITH(load_clip_file(path),
                    Contains("checkpoint.pth: damaged archive") &&
                        Contains("\n  Copy or download the file again."));
}

TEST_CASE("files of others become open_clip's, and no other model's config is replaced") {
  const TempDir dir;
  const std::string theirs = foreign_file("openai/tiny.pt"), ours = dir / "openai.safetensors";
  CHECK(convert_to_open_clip(theirs, ours).tensor_count == read_clip_file(theirs).weights.size());
  const ClipFile back = read_clip_file(ours);
  CHECK(back.config.quick_gelu);
  CHECK(std::filesystem::exists(dir / kOpenClipConfigName));
  CHECK_NOTHROW(convert_to_open_clip(theirs, dir / "openai.pt"));  // the same model again
  ClipFile broken = read_clip_file(theirs);
  broken.weights.front().second = broken.weights.front().second.clone().fill_(NAN);
  write_clip_file(dir / "broken/nan.safetensors", broken);
  CHECK_THROWS_WITH(
      convert_to_open_clip(dir / "broken/nan.safetensors", dir / "never.safetensors"),
      Contains("nan.safetensors: " + broken.weights.front().first) && Contains("not finite"));
  CHECK_FALSE(std::filesystem::exists(dir / "never.safetensors"));
  const std::string other = foreign_file("hugging_face/model.safetensors");
  CHECK_THAT(test::message_of<ConfigError>(
                 [&] { convert_to_open_clip(other, dir / "other.safetensors"); }),
             Contains("has the open_clip_config.json of another model"));
  CHECK_FALSE(std::filesystem::exists(dir / "other.safetensors"));
  CHECK(open_clip_config_of(read_clip_file(ours).config) == open_clip_config_of(back.config));
  CHECK_THROWS_WITH(convert_to_open_clip(theirs, dir / "openai.onnx"),
                    Contains("ends in .pth, .pt or .safetensors"));
}

TEST_CASE("truncated captions are warned of at the first, and at powers of ten from a hundred") {
  const ClipTokenizer letters("", "test");  // a token a letter
  const CapturedLog log;
  LongCaptions long_captions;
  const auto tokens_of_some = [&](const std::vector<std::string>& captions, TextFrame frame) {
    return tokens_of(captions, letters, 5, frame, &long_captions);
  };
  CHECK(tokens_of_some({"cat", "a"}, TextFrame::kEnclosed).size(0) ==
        2);  // two enclose three: fits
  CHECK(log.count("cut") == 0);
  tokens_of_some({"cat", "mouse", "goose"}, TextFrame::kEnclosed);
  CHECK(log.count("captions of more than 3 tokens are cut: the CLIP sees only their beginning") ==
        1);
  CHECK(log.count("The first such caption: \"mouse\"") == 1);
  tokens_of_some(std::vector<std::string>(97, "mouse"), TextFrame::kEnclosed);  // 99 of them
  tokens_of_some({"mouse"}, TextFrame::kBare);                                  // five fit
  CHECK(log.count("cut") == 1);
  tokens_of_some({"rabbit"}, TextFrame::kBare);
  CHECK(log.count("captions were cut 100 times so far") == 1);
  tokens_of_some(std::vector<std::string>(900, "mouse"), TextFrame::kEnclosed);
  CHECK(log.count("captions were cut 1,000 times so far") == 1);
  CHECK(log.count("cut") == 3);
}

TEST_CASE("a picture of another size than the CLIP's is refused when it is read") {
  ClipNetworkConfig config;
  config.vision_cfg.image_size = 8;
  const LoaderOptions needs = clip_needs(config);
  Batch batch;
  batch.keys = {"wide"};
  batch.images = at::zeros({1, 3, 8, 12});
  CHECK_THROWS_WITH(needs.check_batch(batch),
                    Catch::Contains("sample wide: /data/preprocessing: expected pictures of 8 x 8 "
                                    "pixels, as /clip/vision_cfg/image_size says, got 12 x 8"));
  batch.images = at::zeros({1, 3, 8, 8});
  CHECK_NOTHROW(needs.check_batch(batch));
}

}  // namespace
}  // namespace dalle2::test
