// SPDX-License-Identifier: MIT
// Files of other programs for --clip, and `convert --open-clip`. Files of runs: tests/e2e/clip_test.py.
#include "run/checkpoints/clip_weights.h"

#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"
#include "io/text/clip_vocabulary.h"
#include "support/captured_log.h"
#include "support/fixture.h"
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
  CHECK(log.count("a state dict of open_clip: a ViT of width 8, pictures of 12 pixels, 2 and 2 "
                  "heads, QuickGELU, embeddings of 6 values") == 1);
}

TEST_CASE("a CLIP of others without a vocabulary needs OpenAI's, and a text tower that fits it") {
  CHECK_THROWS_AS(load_clip_file(foreign_file("openai/tiny.pt")), DataError);
  CHECK_THROWS_WITH(
      load_clip_file(foreign_file("openai/tiny.pt")),
      Contains("tiny.pt: expected a text tower for OpenAI's vocabulary of 49408 tokens") &&
          Contains("got a text tower for 514 tokens"));
  const TempDir dir;
  const std::string path = dir / "clip.safetensors";
  write_clip_file(path, smallest_clip());
  write_file_atomically(dir / kClipMergesName, "#version: 0.2\nt h\n");
  CHECK_THROWS_WITH(load_clip_file(path),
                    Contains("merges.txt: not the vocabulary of OpenAI's CLIP"));
}

TEST_CASE("a file that is no CLIP, and one that is not there, are named") {
  const TempDir dir;
  write_file_atomically(dir / "clip.safetensors", "text");
  CHECK_THROWS_AS(load_clip_file(dir / "clip.safetensors"), DataError);
  CHECK_THROWS_WITH(load_clip_file(dir / "clip.safetensors"), Contains("clip.safetensors"));
  CHECK_THROWS_WITH(load_clip_file(dir / "none.pt"), Contains("none.pt: no such file"));
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
  CHECK_THROWS_WITH(load_clip_file(path), Contains("checkpoint.pth: damaged archive"));
}

TEST_CASE(
    "files of OpenAI and Hugging Face become open_clip's, and no other model's config is replaced") {
  const TempDir dir;
  const std::string theirs = foreign_file("openai/tiny.pt"), ours = dir / "openai.safetensors";
  CHECK(convert_to_open_clip(theirs, ours).tensor_count == read_clip_file(theirs).weights.size());
  const ClipFile back = read_clip_file(ours);
  CHECK(back.config.quick_gelu);
  CHECK(std::filesystem::exists(dir / kOpenClipConfigName));
  CHECK_NOTHROW(convert_to_open_clip(theirs, dir / "openai.pt"));  // the same model again
  const std::string other = foreign_file("hugging_face/model.safetensors");
  CHECK_THROWS_AS(convert_to_open_clip(other, dir / "other.safetensors"), ConfigError);
  CHECK_THROWS_WITH(convert_to_open_clip(other, dir / "other.safetensors"),
                    Contains("has the open_clip_config.json of another model"));
  CHECK_FALSE(std::filesystem::exists(dir / "other.safetensors"));
  CHECK(open_clip_config_of(read_clip_file(ours).config) == open_clip_config_of(back.config));
  CHECK_THROWS_WITH(convert_to_open_clip(theirs, dir / "openai.onnx"),
                    Contains("ends in .pth, .pt or .safetensors"));
}

}  // namespace
}  // namespace dalle2::test
