// SPDX-License-Identifier: MIT
#include "metrics/networks.h"

#include <torch/script.h>
#include <string>

#include "metrics/feature_network_pictures.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

constexpr const char* kEncoderKey = "/evaluate/FD/feature_extractor_weights_path";

FrechetDistanceConfig encoder_config(const std::string& file) {
  FrechetDistanceConfig config;
  config.feature_extractor_weights_path = fixture_folder("feature_networks") + "/" + file;
  config.image_size = 40;
  config.mean = {0.4, 0.5, 0.6};
  config.std = {0.2, 0.3, 0.4};
  return config;
}

std::string encoder_fault(const FrechetDistanceConfig& config) {
  try {
    const ImageEncoder encoder(config, kEncoderKey, at::kCPU);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

TEST_CASE("a network of one's own sees pictures resized and normalised as it asks") {
  const Fixture fixture = load_fixture("feature_networks/expected"),
                encoded = load_fixture("feature_networks/encoded");
  for (const auto& [how, name] : {std::pair{NetworkResize::tf1, "tf1"},
                                  std::pair{NetworkResize::antialias, "antialias"},
                                  std::pair{NetworkResize::clean, "clean"}}) {
    FrechetDistanceConfig config = encoder_config("encoder.pt");
    config.resize = how;
    const ImageEncoder encoder(config, kEncoderKey, at::kCPU);
    for (size_t number = 0; number < listed(encoded, "sizes", 5).size(); ++number) {
      const std::string key = std::to_string(number) + "." + name;
      // Values of bytes over 255 and over a deviation: float32 roundings of sums of twelve.
      expect_close(encoder(shown_pictures(fixture, number)),
                   encoded.tensor(key),
                   how == NetworkResize::clean ? 1e-4 : 1e-5,
                   key);
    }
  }
  const at::Tensor two = shown_pictures(fixture, 1);
  const ImageEncoder encoder(encoder_config("encoder.pt"), kEncoderKey, at::kCPU);
  CHECK(at::allclose(encoder(two.repeat({21, 1, 1, 1})), encoder(two).repeat({21, 1}), 1e-5, 1e-5));
}

TEST_CASE("what decides the features is told, and is part of their identity") {
  const auto opened = [](const FrechetDistanceConfig& config) {
    return ImageEncoder(config, kEncoderKey, at::kCPU);
  };
  const FrechetDistanceConfig config = encoder_config("encoder.pt");
  const ImageEncoder encoder = opened(config);
  CHECK_THAT(encoder.description(),
             Catch::Matches("FD weights [0-9a-f]{16} at 40 pixels, resize clean"));
  FrechetDistanceConfig other = config;
  other.mean[2] = 0.61;
  CHECK(opened(other).identity() != encoder.identity());
  other = config;
  other.resize = NetworkResize::tf1;
  CHECK(opened(other).identity() != encoder.identity());
}

TEST_CASE("what is wrong with a network of one's own is told at the start") {
  const std::string where = std::string(kEncoderKey) + ": ";
  FrechetDistanceConfig config = encoder_config("strange.pt");
  const std::string strange = *config.feature_extractor_weights_path;
  CHECK(encoder_fault(config) ==
        where + "the network in " + strange +
            " was shown [2, 3, 40, 40]: expected features [2, d], got [2, 3, 40, 40]");
  config = encoder_config("encoder.pt");
  config.image_size = 20;
  CHECK_THAT(encoder_fault(config),
             Catch::Contains("was shown [2, 3, 20, 20]: expected features [2, d], got \"") &&
                 Catch::Contains("index 33 out of range"));
  CHECK(encoder_fault(encoder_config("absent.pt")) ==
        where + "there is no file " + fixture_folder("feature_networks") + "/absent.pt");
  // The same features as float64; other answers are told by their type.
  test::TempDir folder;
  config = encoder_config("encoder.pt");
  const auto answers = [&](const std::string& body) {
    torch::jit::Module network("network");
    network.define("def forward(self, x):\n  " + body + "\n");
    config.feature_extractor_weights_path = folder / "own.pt";
    network.save(*config.feature_extractor_weights_path);
    return encoder_fault(config);
  };
  CHECK(answers("return x.flatten(1).double()").empty());
  CHECK(answers("return x.flatten(1).long()").empty());
  CHECK_THAT(answers("return (x, x)"),
             Catch::Contains("got \"a Tuple, where a tensor is expected: let forward() return the "
                             "features alone\""));
  CHECK_THAT(answers("return {'features': x}"), Catch::Contains("got \"a GenericDict, where"));
  CHECK_THAT(answers("return torch.complex(x.flatten(1), x.flatten(1))"),
             Catch::Contains("complex numbers"));
  CHECK(encoder_fault({}) == where + "expected the file of the network, got null");
}

}  // namespace
}  // namespace dalle2::test
