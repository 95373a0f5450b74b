// SPDX-License-Identifier: MIT
// What a JSON value may stand for: the lenient rules of the reference.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/reading/json_text.h"
#include "config/reading/reflect.h"

namespace dalle2 {

/// 3, 8.0, "3", true; nothing for the rest.
std::optional<int64_t> as_integer(const Json& value);
/// 3, 1e-4, "1e-4", true; nothing for the rest, and for what is not finite.
std::optional<double> as_number(const Json& value);
/// true, 1, 0.0, "yes", "off"; nothing for the rest.
std::optional<bool> as_boolean(const Json& value);

/// What is wrong with a number under `limits`: "must be > 0, got -1".
std::optional<std::string> limit_fault(const Limits& limits, double value, const std::string& got);

/// "> 0 and <= 0.01"; empty without numeric limits.
std::string limits_text(const Limits& limits);

/// True for "s3://bucket", "pipe:cat x", "http://..."; false for plain paths and "file:".
bool is_remote(const std::string& path);

/// True for what the loader reads from elsewhere: "http:", "https:", "s3:", "hf:" and "pipe:".
bool is_fetched(const std::string& path);

}  // namespace dalle2
