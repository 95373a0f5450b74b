// SPDX-License-Identifier: MIT
// Plain values as JSON text: the config in a checkpoint, and all but the tensors of one.
#pragma once

#include "checkpoint/state_dict.h"

#include <functional>
#include <string>

namespace dalle2 {

/// Objects become dicts in the order of the text, arrays lists, whole numbers ints.
/// @throws DataError if the text is not JSON, or nested deeper than 200 levels
Value value_of_json(const std::string& text);

/// Tuples become arrays, keys text; what JSON lacks (tensors, bytes, NaN, objects) becomes a string
/// that describes it.
std::string json_of_value(const Value& value, int indent = -1);

/// Calls visit(name, tensor) for every tensor, named by its path: "model/unets.0.init_conv.bias".
void visit_tensors(const Value& value,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit,
                   const std::string& name = "");

/// One line for people: a scalar's value, "[1, 2]", "tensor float32 [2, 3]", "object of
/// packaging...".
std::string describe(const Value& value);

/// A checkpoint as a list of tensors and a JSON text for the rest, for formats that hold only
/// tensors. The JSON has a dict with text keys as an object; all that JSON lacks as {"$kind": content}:
/// $tensor (its name), $tuple, $dict (pairs of key and value), $ordered (the same for an
/// OrderedDict), $float ("nan", "inf", "-inf"), $bytes (hex).
struct ValueTree {
  std::string json;
  StateDict tensors;  ///< named by their path: "optim0.state.0.exp_avg"
};

/// If all tensors lie in one entry of the root (a model file), their names begin below it.
/// @throws DataError for objects that are not plain data
ValueTree take_apart(const Value& root);

/// The inverse. @param where precedes the text of errors. @throws DataError
Value put_together(const ValueTree& tree, const std::string& where);

}  // namespace dalle2
