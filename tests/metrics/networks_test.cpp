// SPDX-License-Identifier: MIT
// Hidden tests: inception_by_the_reference.py makes what they need, and runs them.
#include <cstdlib>
#include <map>

#include "metrics/image_metrics.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

// As in inception_by_the_reference.py.
constexpr int64_t kSeed = 5, kSplits = 4, kSubsets = 6, kSubsetSize = 20;
constexpr double kGamma = 5;  // the features are small: 1 / d would leave a constant
// The network in float32, with batch norms folded into its convolutions, beside float64 or float32.
constexpr double kFidTolerance = 1e-3, kKidTolerance = 1e-5, kIsTolerance = 1e-4,
                 kLpipsTolerance = 1e-5;

std::string made(const std::string& name) {
  const char* folder = std::getenv("DALLE2_METRIC_NETWORKS");
  if (folder == nullptr) {
    throw DataError(
        "DALLE2_METRIC_NETWORKS is not set: run tests/metrics/inception_by_the_reference.py");
  }
  return std::string(folder) + "/" + name;
}

std::map<std::string, double> figures_of(const DecoderEvaluateConfig& config) {
  const Fixture pictures = load_fixture(made("pictures.safetensors"));
  const auto as_floats = [&](const char* name) {
    return pictures.tensor(name).to(at::kFloat) / 255;
  };
  const at::Tensor real = as_floats("real");
  ImageMetrics metrics(config, real.size(-1), at::kCPU, kSeed);
  metrics.update(at::arange(real.size(0), at::kLong), real, as_floats("generated"));
  const MetricValues found = metrics.compute();
  return {found.values.begin(), found.values.end()};
}

TEST_CASE("FID, IS and KID through the Inception network are torchmetrics' and torch-fidelity's",
          "[.networks]") {
  const nlohmann::json expected = load_fixture(made("pictures.safetensors")).json;
  size_t compared = 0;
  for (const auto& [how, name] :
       {std::pair{NetworkResize::tf1, "tf1"}, std::pair{NetworkResize::antialias, "antialias"}}) {
    for (const InceptionFeature layer : {InceptionFeature::k64,
                                         InceptionFeature::k192,
                                         InceptionFeature::k768,
                                         InceptionFeature::k2048}) {
      const std::string key =
          fmt::format("FID.{}.{}", name, enum_names<InceptionFeature>[static_cast<size_t>(layer)]);
      if (!expected.contains(key)) continue;
      DecoderEvaluateConfig config;
      config.resize = how;
      config.FID.emplace().feature = layer;
      config.FID->feature_extractor_weights_path = made("inception.pt");
      INFO(key);
      CHECK(figures_of(config).at("FID") ==
            Approx(expected.at(key).get<double>()).epsilon(kFidTolerance));
      ++compared;
    }
  }
  CHECK(compared == 7);
  DecoderEvaluateConfig config;
  config.resize = NetworkResize::antialias;
  config.IS.emplace().splits = kSplits;
  config.IS->feature_extractor_weights_path = made("inception.pt");
  config.KID.emplace().subsets = kSubsets;
  config.KID->subset_size = kSubsetSize;
  config.KID->feature = InceptionFeature::k192;
  config.KID->gamma = kGamma;
  const auto found = figures_of(config);
  // The synthetic network sees the same class in all pictures: that the score itself is right is what
  // the cases of features show.
  CHECK(found.at("IS_mean") ==
        Approx(expected.at("IS.antialias")[0].get<double>()).margin(kIsTolerance));
  CHECK(found.at("IS_std") ==
        Approx(expected.at("IS.antialias")[1].get<double>()).margin(kIsTolerance));
  CHECK(found.at("KID_mean") ==
        Approx(expected.at("KID.antialias")[0].get<double>()).epsilon(1e-3).margin(0));
  CHECK(found.at("KID_std") ==
        Approx(expected.at("KID.antialias")[1].get<double>()).margin(kKidTolerance));
}

TEST_CASE("LPIPS is torchmetrics' with each of its backbones", "[.networks]") {
  const nlohmann::json expected = load_fixture(made("pictures.safetensors")).json;
  for (const LpipsNet net : {LpipsNet::alex, LpipsNet::vgg, LpipsNet::squeeze}) {
    const std::string name = enum_names<LpipsNet>[static_cast<size_t>(net)];
    DecoderEvaluateConfig config;
    config.LPIPS.emplace().net_type = net;
    config.LPIPS->weights_path = made("lpips_" + name + ".pt");
    INFO(name);
    CHECK(figures_of(config).at("LPIPS") ==
          Approx(expected.at("LPIPS." + name).get<double>()).margin(kLpipsTolerance));
  }
}

}  // namespace
}  // namespace dalle2::test
