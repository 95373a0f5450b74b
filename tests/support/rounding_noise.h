// SPDX-License-Identifier: MIT
// Values that amplify roundings: a fixture's JSON says in "noise" how far each moves in the reference
// itself when every weight moves by one rounding.
#pragma once

#include "support/fixture.h"

namespace dalle2::test {

// Some hundred operations round once each.
inline constexpr double kNoiseStepsAllowed = 20;

/// Fails unless each value is within `relative` of the largest, and within the roundings of `name`.
inline void expect_within_noise(const at::Tensor& actual,
                                const Fixture& fixture,
                                const std::string& name,
                                double relative) {
  // NumPy has made [1] of [].
  const at::Tensor expected = fixture.tensor(name).to(at::kDouble).view(actual.sizes());
  const double noise = fixture.json.at("noise").at(name).get<double>();
  const double error = (actual.detach().to(at::kDouble) - expected).abs().max().item<double>();
  const double allowed =
      relative * expected.abs().max().item<double>() + kNoiseStepsAllowed * noise + 1e-9;
  INFO(name << ": error " << error << ", allowed " << allowed);
  CHECK(error <= allowed);
}

}  // namespace dalle2::test
