// SPDX-License-Identifier: MIT
// The parsers of checkpoints, as functions of bytes: they need torch, fuzz/parsers.h does not.
#pragma once

#include <string>

namespace dalle2::test {

void read_zip_archive(const std::string& bytes);      ///< directory, headers and checksums
void read_pickled_value(const std::string& bytes);    ///< tensors over storages of 256 bytes
void read_checkpoint_file(const std::string& bytes);  ///< torch.save() old and new, safetensors
void read_script_file(const std::string& bytes);      ///< torch.jit.save()

}  // namespace dalle2::test
