// SPDX-License-Identifier: MIT
// CLIPs in the files of others give the features that they give there, and come back from our own files.
#include "checkpoint/clip/clip_file.h"

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "model/clip_support.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

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

TEST_CASE(
    "CLIPs in files of OpenAI, open_clip and Hugging Face give the features they give there") {
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
    write_clip_file(out + "/open_clip_model.safetensors", {config, state_dict(*clip), {}, ""});
    write_clip_file(out + "/open_clip_pytorch_model.pt", {config, state_dict(*clip), {}, ""});
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

}  // namespace
}  // namespace dalle2::test
