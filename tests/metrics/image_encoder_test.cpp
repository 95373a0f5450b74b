// SPDX-License-Identifier: MIT
#include "metrics/networks.h"

#include <torch/script.h>

#include "io/files/atomic_file.h"
#include "kernels/cpu_algorithms.h"
#include "metrics/feature_network_pictures.h"
#include "metrics/script/script_archive.h"
#include "support/message_of.h"
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

std::string first_line_of(const std::function<void()>& open) {
  const std::string text = message_of<ConfigError>(open);
  return text.substr(0, text.find('\n'));
}

std::string encoder_fault(const FrechetDistanceConfig& config) {
  return first_line_of([&] { const ImageEncoder encoder(config, kEncoderKey, at::kCPU); });
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
  CHECK(answers("return x.flatten(1).double()") == "nothing was thrown");
  CHECK(answers("return x.flatten(1).long()") == "nothing was thrown");
  CHECK_THAT(answers("return (x, x)"),
             Catch::Contains("got \"a Tuple, where a tensor is expected: let forward() return the "
                             "features alone\""));
  CHECK_THAT(answers("return {'features': x}"), Catch::Contains("got \"a GenericDict, where"));
  CHECK_THAT(answers("return torch.complex(x.flatten(1), x.flatten(1))"),
             Catch::Contains("complex numbers"));
  CHECK(encoder_fault({}) == where + "expected the file of the network, got null");
}

/// A network of the fixtures with one weight that is `value`.
std::string with_weight(const TempDir& folder, const std::string& name, double value) {
  torch::jit::ExtraFilesMap extra = {{"dalle2.json", ""}};
  torch::jit::Module module =
      torch::jit::load(fixture_folder("feature_networks") + "/" + name, at::kCPU, extra);
  const at::NoGradGuard no_grad;
  for (at::Tensor parameter : module.parameters()) {
    parameter.view(-1)[1].fill_(value);
    break;
  }
  const std::string path = folder.path() + "/" + name;
  module.save(path, extra);
  return path;
}

TEST_CASE("a network with a weight that is not finite is reported when it is opened") {
  const TempDir folder;
  for (const double value : {std::nan(""), HUGE_VAL}) {
    const std::string path = with_weight(folder, "ours.pt", value);
    CHECK(first_line_of([&] {
            const FeatureNetwork network(
                path, "/evaluate/FID", {InceptionFeature::k64}, NetworkResize::tf1, at::kCPU);
          }) == "/evaluate/FID: layer 64 of " + path +
                    ": the features of a picture of noise are not finite (NaN or infinite): the "
                    "network's weights are damaged");
    FrechetDistanceConfig config;
    config.feature_extractor_weights_path = with_weight(folder, "encoder.pt", value);
    config.image_size = 40;
    CHECK(first_line_of([&] { const ImageEncoder encoder(config, "/evaluate/FD", at::kCPU); }) ==
          "/evaluate/FD: the network in " + *config.feature_extractor_weights_path +
              " was shown [2, 3, 40, 40]: expected features [2, d], got features that are not "
              "finite");
  }
}

TEST_CASE("a network for LPIPS whose distances are not finite is reported when it is opened") {
  const TempDir folder;
  const std::string path = folder.path() + "/lpips.pt";
  torch::jit::Module module("Pairs");
  module.define(
      "def forward(self, one, other):\n"
      "  return (one - other).square().mean([1, 2, 3]).sub(1).log()\n");
  module.save(path, {{"dalle2.json", R"({"kind": "lpips", "net": "alex"})"}});
  CHECK(first_line_of([&] {
          const PerceptualDistance distance(path, "/evaluate/LPIPS", LpipsNet::alex, 8, at::kCPU);
        }) ==
        "/evaluate/LPIPS: the network in " + path +
            " gives a distance of pictures of noise that is not finite (NaN or infinite): its "
            "weights are damaged");
}

TEST_CASE("a whole archive that LibTorch cannot load is reported with LibTorch's message") {
  const TempDir folder;
  const std::string path = folder.path() + "/newer.pt";
  torch::jit::Module module("Nothing");
  module.save(path);
  std::string bytes = read_file(path);
  // Another name of the same length for its class in both places of the archive's directory.
  for (size_t at = bytes.find("newer/code"); at != std::string::npos;
       at = bytes.find("newer/code", at)) {
    bytes.replace(at, 10, "newer/cody");
  }
  std::ofstream(path, std::ios::binary) << bytes;
  CHECK(first_line_of([&] {
          open_script_archive(path, "/key", "Make one.", at::kCPU);
        }).starts_with("/key: " + path + " is TorchScript that LibTorch cannot load: "));
}

TEST_CASE("products are in float32 while a network looks, and afterwards as they were") {
  at::Context& context = at::globalContext();
  const auto convolutions = [&] {
    return context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::CONV);
  };
  REQUIRE(convolutions() == at::Float32Precision::TF32);  // LibTorch's default
  context.setAllowTF32CuBLAS(true);
  int parts = 0;
  const auto look = [&](int64_t, int64_t) {
    ++parts;
    CHECK(convolutions() == at::Float32Precision::IEEE);
    CHECK_FALSE(context.allowTF32CuBLAS());
    CHECK(context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST);
  };
  for_parts(5, 2, look);
  CHECK(parts == 3);
  CHECK_THROWS(for_parts(1, 1, [&](int64_t, int64_t) { throw std::runtime_error("a fault"); }));
  CHECK(convolutions() == at::Float32Precision::TF32);
  CHECK(context.allowTF32CuBLAS());
  context.setAllowTF32CuBLAS(false);
  for_parts(1, 1, look);
  CHECK(convolutions() == at::Float32Precision::TF32);
  CHECK_FALSE(context.allowTF32CuBLAS());
}

torch::jit::Module frozen(const std::string& body) {
  torch::manual_seed(3);
  torch::jit::Module module("Network");
  module.register_parameter("w", at::randn({32, 32, 3, 3}) / 17, /*is_buffer=*/false);
  module.register_parameter("grouped", at::randn({32, 16, 3, 3}) / 12, /*is_buffer=*/false);
  module.register_parameter("b", at::randn({32}), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return " + body + "\n");
  module.eval();
  return torch::jit::freeze(module);
}

struct Answer {
  at::Tensor y, gradient;
};
Answer answer(torch::jit::Module& network) {
  torch::manual_seed(4);
  const at::Tensor x =
      at::randn({2, 32, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const at::Tensor y = network.forward({x}).toTensor();
  return {y.detach(), torch::autograd::grad({y.sin().sum()}, {x})[0]};
}

double relative_difference_of(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST_CASE("a frozen network computes its convolutions with our own, and answers the same") {
  const std::string body = GENERATE(
      "torch.conv2d(x, self.w, self.b, [1, 1], [1, 1], [1, 1], 1).relu_()",
      "torch.conv2d(x, self.w, None, [2, 2], [0, 0], [1, 1], 1)",
      "torch._convolution(x, self.w, self.b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, "
      "True, True)");
  CAPTURE(body);
  torch::jit::Module before = frozen(body), after = frozen(body);
  REQUIRE(use_own_convolutions(after, at::kCPU) == 1);
  for (int pass = 0; pass < 3; ++pass) {  // later ones are optimised
    const Answer expected = answer(before), found = answer(after);
    // float32 and another order of sums: up to 3e-6 with tiles, 1e-6 without, each.
    CHECK(relative_difference_of(found.y, expected.y) < 5e-6);
    CHECK(relative_difference_of(found.gradient, expected.gradient) < 5e-6);
  }
}

TEST_CASE("other convolutions, and other devices', stay as they are") {
  for (
      const char* body :
      {"torch.conv2d(x, self.grouped, self.b, [1, 1], [1, 1], [1, 1], 2)",
       "torch.conv2d(x, self.w, self.b, [1, 1], [2, 2], [2, 2], 1)",
       "torch.conv2d(x, self.w, self.b, [1, 2], [1, 1], [1, 1], 1)",
       "torch.conv2d(x, self.w + x.mean(), self.b, [1, 1], [1, 1], [1, 1], 1)",
       "torch._convolution(x, self.w, self.b, [1, 1], [1, 1], [1, 1], True, [0, 0], 1, False, False, "
       "True, True)"}) {
    CAPTURE(body);
    torch::jit::Module network = frozen(body);
    CHECK(use_own_convolutions(network, at::kCPU) == 0);
    CHECK(answer(network).y.isfinite().all().item<bool>());
  }
  torch::jit::Module network = frozen("torch.conv2d(x, self.w, self.b, [1, 1], [1, 1], [1, 1], 1)");
  CHECK(use_own_convolutions(network, at::Device(at::kCUDA, 0)) == 0);
  const PlainAlgorithms plain;
  CHECK(use_own_convolutions(network, at::kCPU) == 0);
}

}  // namespace
}  // namespace dalle2::test
