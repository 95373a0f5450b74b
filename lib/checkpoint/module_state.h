// SPDX-License-Identifier: MIT
// The tensors of a module by name, and back.
#pragma once

#include "checkpoint/state_dict.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace dalle2 {

/// Parameters and buffers under the names and in the order of Python's Module.state_dict(): for
/// each module first its own parameters, then its buffers, then its children. They share the
/// module's memory.
StateDict state_dict(const torch::nn::Module& module);

struct LoadReport {
  std::vector<std::string> missing;     ///< of the module, not in the source
  std::vector<std::string> unexpected;  ///< in the source, not of the module
};

/// Copies the tensors of `source` whose names begin with `prefix` into the module (types and
/// devices may differ; shapes may not). Buffers of noise schedules keep their values, and may be absent.
/// @param where precedes the text of errors, e.g. "a.pth: /model"
/// @throws DataError that lists all missing and unexpected names (if strict) and all shapes that
/// differ; the module is then unchanged
LoadReport load_state_dict(torch::nn::Module& module,
                           const StateDict& source,
                           const std::string& prefix = "",
                           bool strict = true,
                           const std::string& where = "state dict");

/// @throws DataError naming the first tensor that holds NaN or infinity
void check_finite(const StateDict& weights, const std::string& where);
inline void check_finite(const torch::nn::Module& module, const std::string& where) {
  check_finite(state_dict(module), where);
}

/// Warns of what a load that is not strict left out, if anything.
void warn_of_rest(const LoadReport& report, const std::string& where);

}  // namespace dalle2
