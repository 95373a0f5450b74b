// SPDX-License-Identifier: MIT
// Whether a file of torch.jit.save() is whole. LibTorch's own reader looks at no checksum, and takes
// the size of a tensor for that of its record: what is cut off or damaged gives wrong numbers or
// ends the process.
#pragma once

#include "checkpoint/archive/mapped_file.h"

namespace dalle2 {

/// Whether a file is an archive with a TorchScript program (of torch 1.4 or later), and not weights alone.
/// Every CRC-32 is checked, and that each tensor's record is as long as the tensor.
/// @throws DataError for anything damaged; no code in the file is ever executed
bool check_script_file(const MappedFile& file);

}  // namespace dalle2
