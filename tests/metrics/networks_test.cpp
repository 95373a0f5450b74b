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

std::map<std::string, double> figures_of(const DecoderEvaluateConfig& config,
                                         const at::Tensor& real,
                                         const at::Tensor& generated) {
  ImageMetrics metrics(config, real.size(-1), at::kCPU, kSeed);
  metrics.update(at::arange(real.size(0), at::kLong), real, generated);
  const MetricValues found = metrics.compute();
  return {found.values.begin(), found.values.end()};
}

std::map<std::string, double> figures_of(const DecoderEvaluateConfig& config) {
  const Fixture pictures = load_fixture(made("pictures.safetensors"));
  const auto as_floats = [&](const char* name) {
    return pictures.tensor(name).to(at::kFloat) / 255;
  };
  return figures_of(config, as_floats("real"), as_floats("generated"));
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

TEST_CASE("golden values of torchmetrics 1.9 with the same synthetic weights", "[.networks]") {
  const Fixture pictures = load_fixture(made("golden.safetensors"));
  const at::Tensor real = pictures.tensor("real"), generated = pictures.tensor("generated");
  struct Golden {
    InceptionFeature layer;
    NetworkResize resize;
    double distance;
  };
  for (const auto& [layer, resize, distance] :
       {Golden{InceptionFeature::k64, NetworkResize::antialias, 0.00035810202825814486},
        Golden{InceptionFeature::k192, NetworkResize::antialias, 0.02753983996808529},
        Golden{InceptionFeature::k768, NetworkResize::antialias, 0.0037911776453256607},
        Golden{InceptionFeature::k2048, NetworkResize::antialias, 2.0063969714101404e-05},
        Golden{InceptionFeature::k64, NetworkResize::tf1, 0.0003135260194540024}}) {
    DecoderEvaluateConfig config;
    config.resize = resize;
    config.FID.emplace().feature = layer;
    config.FID->feature_extractor_weights_path = made("inception.pt");
    INFO(distance);
    // Of nearly equal means the features' own rounding, 1e-7 of their size, is left: at 2048 features
    // more than a thousandth of 2e-5.
    CHECK(figures_of(config, real, generated).at("FID") ==
          Approx(distance).epsilon(kFidTolerance).margin(5e-8));
  }
  DecoderEvaluateConfig config;
  config.resize = NetworkResize::antialias;
  config.KID.emplace().feature = InceptionFeature::k64;
  config.KID->subset_size = 6;
  config.KID->subsets = 3;
  config.KID->feature_extractor_weights_path = made("inception.pt");
  const auto found = figures_of(config, real, generated);
  CHECK(found.at("KID_mean") ==
        Approx(1.6609827071079053e-05).margin(3e-7));  // torchmetrics' std is 1e-7
  for (const auto& [net, first, second] :
       {std::tuple{LpipsNet::vgg, 0.4136071801185608, 0.37957191467285156},
        std::tuple{LpipsNet::alex, 0.07786160707473755, 0.06404606252908707},
        std::tuple{LpipsNet::squeeze, 0.08515653014183044, 0.07249907404184341}}) {
    DecoderEvaluateConfig of_pairs;
    const std::string name = enum_names<LpipsNet>[static_cast<size_t>(net)];
    of_pairs.LPIPS.emplace().net_type = net;
    of_pairs.LPIPS->weights_path = made("lpips_golden_" + name + ".pt");
    INFO(name);
    for (const int64_t row : {0, 1}) {
      const auto one = figures_of(of_pairs,
                                  pictures.tensor("real_64").narrow(0, row, 1),
                                  pictures.tensor("generated_64").narrow(0, row, 1));
      CHECK(one.at("LPIPS") == Approx(row == 0 ? first : second).margin(kLpipsTolerance));
    }
  }
}

}  // namespace
}  // namespace dalle2::test
