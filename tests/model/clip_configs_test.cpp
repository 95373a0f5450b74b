// SPDX-License-Identifier: MIT
// CLIPs of random configs over all keys that open_clip and Hugging Face know: computed as there, or refused
// by the name of the key. Made by tests/parity/make_clip_configs.py.
#include <torch/torch.h>

#include "checkpoint/clip/clip_file.h"
#include "checkpoint/module_state.h"
#include "data/pictures/preprocess.h"
#include "io/files/atomic_file.h"
#include "model/clip/clip.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

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
      CHECK_THROWS_AS(read_clip_file(path), DataError);
      CHECK_THROWS_WITH(read_clip_file(path),
                        Catch::Contains("config.json: ") &&
                            Catch::Contains(given.json.at("refused").get<std::string>()));
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
