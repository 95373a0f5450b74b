// SPDX-License-Identifier: MIT
// Figures of features against torchmetrics and torch-fidelity.

#include "metrics/feature_metrics.h"
#include "metrics/image_metrics.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

constexpr size_t kCases = 12;
// All in float64; a root of an eigenvalue near 0 keeps half of its digits, and the reference takes
// those of a matrix that is not symmetric: 5e-6 absolute was seen on sets of fewer samples than features.
constexpr double kFrechetTolerance = 1e-5;
constexpr double kTolerance = 1e-9;

template <typename Check>
void for_cases(const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder("metrics"), kCases)) {
    INFO(path);
    check(load_fixture(path));
  }
}

FeatureSums sums_of(const at::Tensor& features) {
  FeatureSums sums(features.size(1));
  sums.add(features);
  return sums;
}

TEST_CASE("the Fréchet distance is torchmetrics', from features and from sums") {
  for_cases([](const Fixture& fixture) {
    const at::Tensor real = fixture.tensor("real"), generated = fixture.tensor("generated");
    const double expected = std::max(fixture.json.at("fid").get<double>(), 0.0);
    CHECK(std::abs(frechet_distance(real, generated) - expected) <= kFrechetTolerance);
    CHECK(std::abs(frechet_distance(sums_of(real), sums_of(generated)) - expected) <=
          kFrechetTolerance);
  });
}

TEST_CASE("of fewer samples than features the Fréchet distance is that of the covariances") {
  // The singular values keep all digits; the eigenvalues that should be 0 are rounding, and their
  // roots add up: so the two ways are compared where these are few.
  const at::Tensor real = torch::randn({30, 40}, at::make_generator<at::CPUGeneratorImpl>(3));
  const at::Tensor generated =
      torch::randn({35, 40}, at::make_generator<at::CPUGeneratorImpl>(4)) * 1.3 + 0.2;
  const double direct = frechet_distance(real, generated);
  CHECK(frechet_distance(sums_of(real), sums_of(generated)) == Approx(direct).epsilon(1e-6));
}

TEST_CASE("equal sets are at no distance, and never below it") {
  const at::Tensor few = torch::randn({5, 64}, at::make_generator<at::CPUGeneratorImpl>(5));
  const at::Tensor many = torch::randn({200, 8}, at::make_generator<at::CPUGeneratorImpl>(6));
  for (const at::Tensor& rows : {few, many}) {
    CHECK(frechet_distance(rows, rows) >= 0);
    CHECK(frechet_distance(rows, rows) < 1e-6);
  }
}

TEST_CASE("sums of parts are the sums of the whole") {
  const at::Tensor rows = torch::randn({3000, 6}, at::make_generator<at::CPUGeneratorImpl>(7));
  FeatureSums parts = sums_of(rows.narrow(0, 0, 1100));
  parts.add(rows.narrow(0, 1100, 1900));
  const FeatureSums whole = sums_of(rows);
  CHECK(parts.count == 3000);
  CHECK(at::allclose(parts.sum, whole.sum, 1e-12, 1e-9));
  CHECK(at::allclose(parts.outer, whole.outer, 1e-12, 1e-9));
}

TEST_CASE("the kernel distance is torchmetrics' for the same subsets") {
  for_cases([](const Fixture& fixture) {
    const auto& kid = fixture.json.at("kid");
    KernelOptions options{.subsets = kid.at("subsets"),
                          .subset_size = kid.at("subset_size"),
                          .degree = kid.at("degree"),
                          .coef = kid.at("coef")};
    if (!kid.at("gamma").is_null()) options.gamma = kid.at("gamma").get<double>();
    const KernelDistance found = kernel_distance(fixture.tensor("real"),
                                                 fixture.tensor("generated"),
                                                 options,
                                                 fixture.tensor("of_real"),
                                                 fixture.tensor("of_generated"));
    CHECK(found.mean == Approx(kid.at("mean").get<double>()).epsilon(kTolerance).margin(1e-12));
    CHECK(found.deviation ==
          Approx(kid.at("deviation").get<double>()).epsilon(kTolerance).margin(1e-10));
  });
}

TEST_CASE("the subsets of a kernel distance follow from the generator alone") {
  const at::Tensor real = torch::randn({30, 4}, at::make_generator<at::CPUGeneratorImpl>(1));
  const at::Tensor generated = torch::randn({40, 4}, at::make_generator<at::CPUGeneratorImpl>(2));
  const auto mean = [&](uint64_t seed) {
    return kernel_distance(real,
                           generated,
                           {.subsets = 10, .subset_size = 20},
                           at::make_generator<at::CPUGeneratorImpl>(seed))
        .mean;
  };
  CHECK(mean(1) == mean(1));
  CHECK(mean(1) != mean(2));
}

TEST_CASE("the inception score is torchmetrics' for the same order") {
  for_cases([](const Fixture& fixture) {
    const auto& expected = fixture.json.at("inception");
    const MeanAndDeviation found =
        inception_score(fixture.tensor("logits"), expected.at("splits"), std::nullopt);
    CHECK(found.mean == Approx(expected.at("mean").get<double>()).epsilon(kTolerance));
    if (expected.at("deviation").is_null()) {
      CHECK(std::isnan(found.deviation));
    } else {
      CHECK(found.deviation ==
            Approx(expected.at("deviation").get<double>()).epsilon(kTolerance).margin(1e-12));
    }
  });
}

TEST_CASE("classes that no sample has do not make an inception score NaN") {
  at::Tensor logits = torch::zeros({4, 3});
  logits.select(1, 2).fill_(-1e30);
  CHECK(inception_score(logits, 1, std::nullopt).mean == Approx(1.0));
}

TEST_CASE("precision and recall are torch-fidelity's") {
  for_cases([](const Fixture& fixture) {
    const PrecisionAndRecall found = precision_and_recall(
        fixture.tensor("real"), fixture.tensor("generated"), fixture.json.at("neighbours"));
    CHECK(found.precision == Approx(fixture.json.at("precision").get<double>()).epsilon(1e-6));
    CHECK(found.recall == Approx(fixture.json.at("recall").get<double>()).epsilon(1e-6));
  });
}

// Hidden tests: inception_by_the_reference.py makes what they need, and runs them.
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
