// SPDX-License-Identifier: MIT
// Files of CLIPs of x-clip: which arguments they need, and what becomes of those that do not fit.

#include <torch/types.h>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

std::string x_clip_file() {
  return fixture_folder("x_clip") + "/file/x_clip.pt";
}

XClipFile read_x_clip(const std::string& path, const std::optional<XClipConfig>& config = {}) {
  return as_x_clip_file(read_raw_clip(path), path, {.arguments = config});
}

TEST_CASE("a state dict of x-clip is known by its names, and others are not") {
  CHECK(is_x_clip(read_raw_clip(x_clip_file()).tensors));
  const std::string other = fixture_folder("clip_files") + "/open_clip/open_clip_model.safetensors";
  CHECK_FALSE(is_x_clip(read_raw_clip(other).tensors));
  CHECK_THROWS_WITH(
      read_clip_file(x_clip_file()),
      Contains(
          "x_clip.pt: a CLIP of x-clip: expected a CLIP of OpenAI, open_clip or Hugging Face"));
}

TEST_CASE("a CLIP of x-clip comes with the arguments beside it, without what only training needs") {
  const CapturedLog log;
  const XClipFile file = read_x_clip(x_clip_file());
  CHECK(file.config.dim_image == 8);
  CHECK(file.config.text_rotary_pos_emb);
  CHECK(file.config.token_rows() == file.config.num_text_tokens + 1);
  CHECK(file.merges.has_value());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file.weights) names.push_back(name);
  const Fixture expected = load_fixture(fixture_folder("x_clip") + "/file/expected.safetensors");
  CHECK(names == expected.json.at("names").get<std::vector<std::string>>());
  CHECK(log.count("tensors of mlm.* or visual_ssl.* are left out") == 1);
}

TEST_CASE("without arguments a CLIP of x-clip is refused with what to do") {
  const TempDir dir;
  const std::string path = dir / "clip.pt";
  write_file_atomically(path, read_file(x_clip_file()));
  CHECK_THROWS_AS(read_x_clip(path), ConfigError);
  CHECK_THROWS_WITH(read_x_clip(path),
                    Contains("clip.pt: a CLIP of x-clip, whose weights do not say all") &&
                        Contains("into x_clip_config.json beside the file") &&
                        Contains("\"base_model_kwargs\", with \"make\": \"x-clip\""));
  write_file_atomically(dir / kXClipConfigName, R"({"text_width": 4, "visual_patch_size": 3})");
  CHECK_THROWS_AS(read_x_clip(path), DataError);
  CHECK_THROWS_WITH(read_x_clip(path),
                    Contains("x_clip_config.json: no CLIP that can be built") &&
                        Contains("/text_width: no such key; known are: dim_text"));
  // Arguments in a file of another name, which a command line gives.
  write_file_atomically(dir / "own.json",
                        read_file(fixture_folder("x_clip") + "/file/" + kXClipConfigName));
  CHECK(as_x_clip_file(read_raw_clip(path), path, {.config_path = dir / "own.json"})
            .config.dim_image == 8);
  write_file_atomically(dir / kXClipConfigName, "{");
  CHECK_THROWS_WITH(read_x_clip(path), Contains("x_clip_config.json"));
}

}  // namespace
}  // namespace dalle2::test
