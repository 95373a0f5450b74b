// SPDX-License-Identifier: MIT
#include "fuzz/parsers.h"

#include "base/error.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/convert.h"
#include "checkpoint/inspect.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "fuzz/promise.h"

#include <torch/types.h>

namespace dalle2::test {
namespace {

/// What a tensor may touch lies in its storage.
void check_extent(const at::Tensor& tensor) {
  promise(tensor.is_cpu() && !tensor.is_sparse(), "a tensor of a kind we do not read");
  if (tensor.numel() == 0) return;
  int64_t last = tensor.storage_offset();
  promise(last >= 0, "a tensor before its storage");
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    promise(tensor.stride(dim) >= 0, "a negative stride");
    int64_t way = 0;
    promise(!__builtin_mul_overflow(tensor.size(dim) - 1, tensor.stride(dim), &way) &&
                !__builtin_add_overflow(last, way, &last),
            "a tensor of more than 64 bits of elements");
  }
  const auto item = static_cast<int64_t>(tensor.element_size());
  promise(last < static_cast<int64_t>(tensor.storage().nbytes()) / item,
          "a tensor reaches beyond its storage");
}

void check_tensors(const Value& value) {
  if (value.is_tensor()) return check_extent(value.as_tensor());
  if (value.is_list() || value.is_tuple()) {
    for (const Value& item : value.as_sequence()) check_tensors(item);
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().items) {
      check_tensors(key);
      check_tensors(item);
    }
  }
}

}  // namespace

void read_zip_archive(const std::string& bytes) {
  const MemoryFile file(bytes);
  const MappedFile mapped(file.path());
  const std::vector<ZipMember> members = read_zip_directory(mapped);
  for (const ZipMember& member : members) {
    promise(member.offset <= bytes.size() && member.size <= bytes.size() - member.offset,
            "a member beyond the file");
  }
  promise(content_crcs(mapped, members).size() == members.size(), "a member without a checksum");
}

void read_pickled_value(const std::string& bytes) {
  constexpr uint64_t kStorageBytes = 256;
  const StorageLoader loader = [](const StorageRef& ref) {
    uint64_t size = 0;
    if (__builtin_mul_overflow(ref.numel, ref.item_bytes(), &size) || size > kStorageBytes) {
      throw DataError("storage '{}' is too large", ref.key);
    }
    return at::zeros({static_cast<int64_t>(size)}, at::kByte);
  };
  const Value value = value_of_pickle(run_pickle(bytes, "x"), loader, "x");
  check_tensors(value);
  describe(value);
  promise(value_of_json(json_of_value(value)).type_name() != "", "a value that JSON cannot tell");
  ValueTree tree;
  try {
    tree = take_apart(value);
  } catch (const DataError&) {
    return;  // objects of unknown classes
  }
  promise(take_apart(put_together(tree, "x")).json == tree.json, "a tree that does not come back");
}

void read_checkpoint_file(const std::string& bytes) {
  const MemoryFile file(bytes);
  const CheckedFile checked = check_file(file.path());
  promise(!fsck_json(file.path(), {checked}).empty() && !fsck_text(file.path(), {checked}).empty(),
          "a report without a text");
  const Value value = read_checkpoint(file.path());
  check_tensors(value);
  const Inspection inspection = inspect_file(file.path());
  promise(!inspection_text(inspection).empty() && !inspection_json(inspection).empty(),
          "a checkpoint without a text");
  if (bytes.find("lora") != bytes.npos) read_lora_file(file.path());
}

void read_script_file(const std::string& bytes) {
  const MemoryFile file(bytes);
  const MappedFile mapped(file.path());
  if (!check_script_file(mapped)) return;
  for (const ZipMember& member : read_zip(mapped, Packing::kStoredOrDeflated)) {
    promise(member.offset <= bytes.size() && member.packed_size <= bytes.size() - member.offset,
            "a member beyond the file");
    promise(member.is_deflated || member.size == member.packed_size, "a plain member of two sizes");
  }
}

}  // namespace dalle2::test
