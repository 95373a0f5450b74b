// SPDX-License-Identifier: MIT
// Figures of features against torchmetrics and torch-fidelity.
#include <torch/utils.h>
#include <cmath>
#include <string>

#include "metrics/feature_metrics.h"
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

}  // namespace
}  // namespace dalle2::test
