// SPDX-License-Identifier: MIT
// Files of the safetensors format: u64 header length, JSON header, the tensors' bytes.
#pragma once

#include "checkpoint/state_dict.h"

#include <map>
#include <string>

namespace dalle2 {

struct SafetensorsFile {
  StateDict tensors;  ///< in the order of the header
  std::map<std::string, std::string> metadata;
};

/// Reads a file; the tensors lie in a private mapping of it, read when touched.
/// @throws DataError for whatever the Python package refuses too (holes, overlaps, missing or
/// trailing bytes, shapes that do not fit, ...), and for a name that appears twice
SafetensorsFile read_safetensors(const std::string& path);

/// Writes whole or not at all, the largest element types first so that every tensor is aligned; the
/// header keeps the order of `tensors`. Tensors that share memory are written one by one.
/// @throws DataError for a name given twice or an element type the format lacks
void write_safetensors(const std::string& path,
                       const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace dalle2
