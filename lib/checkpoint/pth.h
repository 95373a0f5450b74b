// SPDX-License-Identifier: MIT
// Files of torch.save().
#pragma once

#include "checkpoint/state_dict.h"

#include <string>

namespace dalle2 {

/// Reads a file of torch.save(), also of the layout before torch 1.6. Every CRC-32 is checked.
/// Tensors lie in a private mapping of the file: they are read when touched, and writing to them
/// does not change the file.
/// @throws DataError for anything damaged; no code in the file is ever executed
Value read_pth(const std::string& path);

/// Whether to read a file back before it takes the place of an older one.
enum class ReadBack { kNo, kYes };

/// Writes a file that Python reads with torch.load(weights_only=True), whole or not at all. Tensors
/// of other devices are written as tensors of the CPU.
/// @throws DataError for what is not plain data, ResourceError if the disk is full
void write_pth(const std::string& path, const Value& value, ReadBack read_back = ReadBack::kYes);

/// Reads the whole file as read_pth() does. @throws DataError if any of it is damaged
void verify_pth(const std::string& path);

}  // namespace dalle2
