// SPDX-License-Identifier: MIT
// A checkpoint as a list of tensors and a JSON text for the rest, for formats that hold only
// tensors.
#pragma once

#include "checkpoint/state_dict.h"

#include <string>

namespace dalle2 {

/// The JSON has a dict with text keys as an object; all that JSON lacks as {"$kind": content}:
/// $tensor (its name), $tuple, $dict (pairs of key and value), $ordered (the same for an
/// OrderedDict), $float ("nan", "inf", "-inf"), $bytes (hex).
struct ValueTree {
  std::string json;
  StateDict tensors;  ///< named by their path: "optim0.state.0.exp_avg"
};

/// If all tensors lie in one entry of the root (a model file), their names begin below it.
/// @throws DataError for objects that are not plain data
ValueTree take_apart(const Value& root);

/// The inverse. @param where stands before the text of errors. @throws DataError
Value put_together(const ValueTree& tree, const std::string& where);

}  // namespace dalle2
