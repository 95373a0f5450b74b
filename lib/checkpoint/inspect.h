// SPDX-License-Identifier: MIT
// What is in a file: every tensor with type and shape, every scalar with its value.
#pragma once

#include "checkpoint/state_dict.h"

#include <string>
#include <vector>

namespace dalle2 {

struct InspectEntry {
  std::string name;  ///< its path: "model/unets.0.init_conv.bias", "optim0/param_groups/0/lr"
  std::string type;  ///< a tensor's element type ("float32"), else Python's name of the type
  bool is_tensor = false;
  std::vector<int64_t> shape;
  Value value;  ///< if it is not a tensor; a list of scalars is one entry
};

struct Inspection {
  std::string path;
  std::string layout;  ///< of weights of an older dalle2-pytorch: which; else ""
  std::vector<InspectEntry> entries;
  size_t tensor_count = 0;
  int64_t element_count = 0;
  uint64_t tensor_bytes = 0;
};

/// Reads a .pth or safetensors file, checksums included. @throws DataError
Inspection inspect_file(const std::string& path);

/// A table of name, type and shape or value, and closing lines with the layout, if there is one, and the sums.
std::string inspection_text(const Inspection& inspection);

/// {"file", "layout", "tensors", "elements", "bytes", "entries": [{"name", "dtype", "shape"} | {"name",
/// "type", "value"}]}
std::string inspection_json(const Inspection& inspection);

}  // namespace dalle2
