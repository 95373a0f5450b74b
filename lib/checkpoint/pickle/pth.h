// SPDX-License-Identifier: MIT
// Files of torch.save() and torch.jit.save().
#pragma once

#include "checkpoint/state_dict.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

class MappedFile;

/// Reads a file of torch.save(), including the layout before torch 1.6. Every CRC-32 is checked.
/// Tensors lie in a private mapping of the file: they are read when touched, and writing to them
/// does not change the file.
/// @throws DataError for anything damaged; no code in the file is ever executed
Value read_pth(const std::string& path);

/// The same without reading the contents of tensors, whose checksums are not looked at: for what a
/// file says of itself. Whoever uses its tensors calls read_pth(). @throws as read_pth()
Value read_pth_outline(const std::string& path);

/// Whether a file is an archive with a TorchScript program (of torch 1.4 or later), and not weights alone.
/// Every CRC-32 is checked, and that each tensor's record is as long as the tensor: LibTorch's own reader
/// does neither, and what is cut off or damaged gives wrong numbers there or ends the process.
/// @throws DataError for anything damaged; no code in the file is ever executed
bool check_script_file(const MappedFile& file);

/// The attributes of a program of torch.jit.save(): a StubObject a module, whose state is a dict of its
/// tensors, numbers and modules. Its code is not looked at. @throws DataError, also for other files
Value read_script_attributes(const std::string& path);

/// Whether to read a file back before it takes the place of an older one.
enum class ReadBack { kNo, kYes };

/// Writes a file that Python reads with torch.load(weights_only=True), whole or not at all. Tensors
/// on other devices are written as tensors on the CPU.
/// @throws DataError for what is not plain data, ResourceError if the disk is full
void write_pth(const std::string& path, const Value& value, ReadBack read_back = ReadBack::kYes);

/// A value as it was at one moment, in memory of its own on the host: it can be written while
/// training changes the tensors.
class PthSnapshot {
 public:
  /// Of the memory that is taken at once, unless a tensor is larger. LibTorch rounds page-locked
  /// memory up to a power of two: a whole state in one piece would lock nearly twice its size.
  static constexpr int64_t kPieceBytes = int64_t{256} << 20;

  explicit PthSnapshot(int64_t piece_bytes = kPieceBytes) : piece_bytes_(piece_bytes) {}
  /// Copies the tensors, but for those in a file (lies_in_file()), which nobody may write to.
  /// Memory of an earlier call is reused if it is large enough; for tensors of a GPU it is
  /// page-locked. @throws as write_pth() for what cannot be saved
  void take(const Value& value);
  /// Writes exactly the file that write_pth() would have written then. May run on any thread, if
  /// nobody calls take() meanwhile.
  void write(const std::string& path, ReadBack read_back = ReadBack::kYes) const;
  /// Forgets the value, and with it files that its tensors lie in. The memory stays.
  void clear();

 private:
  void make_memory(const std::vector<int64_t>& sizes, bool pinned);

  int64_t piece_bytes_;
  std::string pickle_;
  std::vector<at::Tensor> storages_;  // [numel], views of pieces_ or in a file
  std::vector<at::Tensor> pieces_;    // [bytes] each
};

/// Reads a file of write_pth() back, from the disk itself where the file system allows that. Uses only the
/// calling thread and little memory. @param crc CRC-32 of the whole file
/// @throws DataError if any of it is damaged, or not in the layout that write_pth() writes
void verify_pth(const std::string& path, uint32_t crc);

/// All members of a file of torch.save() whose contents do not fit their CRC-32, a line each with the first
/// tensor that lies in it; none for the layout before torch 1.6, which has no checksums.
/// @throws DataError if the archive's own structure is damaged
std::vector<std::string> damaged_members(const std::string& path);

}  // namespace dalle2
