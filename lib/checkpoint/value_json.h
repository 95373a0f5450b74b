// SPDX-License-Identifier: MIT
// Plain values as JSON text: the config in a checkpoint.
#pragma once

#include "checkpoint/state_dict.h"

#include <string>

namespace dalle2 {

/// Objects become dicts in the order of the text, arrays lists, whole numbers ints.
/// @throws DataError if the text is not JSON, or nested deeper than 200 levels
Value value_of_json(const std::string& text);

/// Tuples become arrays, keys text; what JSON lacks (tensors, bytes, NaN, objects) becomes a string
/// that describes it.
std::string json_of_value(const Value& value, int indent = -1);

/// One line for people: a scalar's value, "[1, 2]", "tensor float32 [2, 3]", "object of
/// packaging...".
std::string describe(const Value& value);

}  // namespace dalle2
