// SPDX-License-Identifier: MIT
// The one header of Catch2 2, made of those of Catch2 3: found where that version is installed, so that the tests are
// written for either.
#pragma once

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_predicate.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>

#include <string>

namespace Catch {
namespace Matchers {
/// Version 3 keeps this name for elements of ranges, in a header that is not included here.
inline StringContainsMatcher Contains(const std::string& part) {
  return ContainsSubstring(part);
}
}  // namespace Matchers
using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::Equals;
using Matchers::Matches;
using Matchers::Message;
using Matchers::StartsWith;
}  // namespace Catch
using Catch::Approx;
