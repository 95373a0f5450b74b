// SPDX-License-Identifier: MIT
// How the runs of a decoder and of a prior are compared with the reference's.
#pragma once

#include <torch/torch.h>
#include <functional>

#include "support/fixture.h"

namespace dalle2::test {

// A dozen updates: Adam turns a gradient that is rounding noise about zero into a step of up to lr
// (1e-3) in either direction, so single weights may differ by that much; the losses hardly notice.
inline constexpr double kLossTolerance = 2e-5;
inline constexpr double kWeightTolerance = 1e-3;
// The norm of all gradients, at weights that differ by as much.
inline constexpr double kGradNormTolerance = 1e-3;
// Gradients of some weights nearly cancel, to 1e-7 of the norm: what is left carries the rounding of
// its terms. Seeds show up to 3e-3 in moments of that size; the sum of squares has twice the error.
inline constexpr double kMomentTolerance = 2e-2;

/// The recorded runs whose checkpoint there is: `least`, and `other` among fresh cases. The
/// repository leaves that one out, for its size.
template <class RecordedRun>
std::vector<const char*> runs_with_checkpoint(const char* least, const char* other) {
  std::vector<const char*> names = {least};
  if (std::filesystem::exists(RecordedRun(other).checkpoint_path())) names.push_back(other);
  return names;
}

/// Some values of every parameter, and its mean size.
inline void check_compact(const Fixture& fixture,
                          const std::string& prefix,
                          const torch::OrderedDict<std::string, at::Tensor>& parameters) {
  const StateDict expected = fixture.below(prefix);
  REQUIRE_FALSE(expected.empty());
  const torch::NoGradGuard no_grad;
  REQUIRE(parameters.size() == expected.size());
  for (const auto& [name, values] : expected) {
    const at::Tensor flat = parameters[name].flatten();
    const int64_t stride = std::max<int64_t>(1, flat.numel() / 8);
    const at::Tensor actual = at::cat(
        {flat.slice(0, 0, flat.numel(), stride).slice(0, 0, 8), flat.abs().mean().unsqueeze(0)});
    expect_close(actual, values, kWeightTolerance, prefix + name);
  }
}

/// Checks a value that is meant to differ from theirs. @return whether it is such a value
using CheckOther =
    std::function<bool(const Value& ours, const Value& theirs, const std::string& path)>;

/// Same keys in the same order, same types, shapes and values, except where `check_other` knows
/// better.
inline void expect_same(const Value& ours,
                        const Value& theirs,
                        const std::string& path,
                        const CheckOther& check_other = {}) {
  INFO(path);
  if (check_other && check_other(ours, theirs, path)) return;
  REQUIRE(ours.type_name() == theirs.type_name());
  if (theirs.is_dict()) {
    const auto& a = ours.as_dict().items;
    const auto& b = theirs.as_dict().items;
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < b.size(); ++i) {
      expect_same(a[i].first, b[i].first, path + " key " + std::to_string(i));
      const std::string key =
          b[i].first.is_string() ? b[i].first.as_string() : std::to_string(b[i].first.as_int());
      expect_same(a[i].second, b[i].second, path + "/" + key, check_other);
    }
  } else if (theirs.is_list() || theirs.is_tuple()) {
    REQUIRE(ours.as_sequence().size() == theirs.as_sequence().size());
    for (size_t i = 0; i < theirs.as_sequence().size(); ++i) {
      expect_same(ours.as_sequence()[i],
                  theirs.as_sequence()[i],
                  path + "/" + std::to_string(i),
                  check_other);
    }
  } else if (theirs.is_tensor()) {
    CHECK(ours.as_tensor().scalar_type() == theirs.as_tensor().scalar_type());
    const bool moment = path.find("/exp_avg") != std::string::npos;
    const double tolerance = moment ? kMomentTolerance : kWeightTolerance;
    expect_close(ours.as_tensor(), theirs.as_tensor(), tolerance, path);
  } else if (theirs.is_string()) {
    CHECK(ours.as_string() == theirs.as_string());
  } else if (theirs.is_bool()) {
    CHECK(ours.as_bool() == theirs.as_bool());
  } else if (!theirs.is_none()) {
    CHECK(ours.as_double() == Approx(theirs.as_double()).epsilon(1e-9));
  }
}

}  // namespace dalle2::test
