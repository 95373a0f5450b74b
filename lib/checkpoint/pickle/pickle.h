// SPDX-License-Identifier: MIT
// Pickles as values and back. Known classes (dicts, tensors, numpy's scalars, ...) become values,
// all others inert stubs: nothing is ever imported or executed.
#pragma once

#include "checkpoint/pickle/pickle_machine.h"
#include "checkpoint/state_dict.h"

#include <functional>
#include <optional>
#include <string>

namespace dalle2 {

/// What a pickle says of a tensor's storage; the bytes lie beside it in the file.
struct StorageRef {
  std::optional<at::ScalarType> dtype;  ///< none: untyped, `numel` counts bytes
  std::string key;
  uint64_t numel = 0;

  uint64_t item_bytes() const { return dtype ? c10::elementSize(*dtype) : 1; }
};

/// All bytes of a storage as a uint8 tensor [bytes], the same memory for the same key.
using StorageLoader = std::function<at::Tensor(const StorageRef&)>;

/// The storages that a pickle names, each reference once. @throws DataError
std::vector<StorageRef> storages_of(const PickleGraph& graph, const std::string& where);

/// The pickle's object; shared storages and views stay shared.
/// @throws DataError for impossible tensors, nesting beyond 200 levels, and shared objects that
/// unfold to more than 1 MiB and 256 times the pickle's bytes
Value value_of_pickle(const PickleGraph& graph,
                      const StorageLoader& loader,
                      const std::string& where);

/// "1.15.6" from a str or from a pickled packaging.version.Version; nothing for anything else.
std::optional<std::string> version_text(const Value& value);

struct PickleToWrite {
  std::string bytes;  ///< protocol 2
  /// Runs of elements that a file is to hold as storages of their own, by their key: [numel], on their own
  /// device, in the tensors' memory.
  std::vector<at::Tensor> storages;
};

/// The value as torch.save() pickles it. Views that overlap share a storage; of a storage only the
/// parts in use are kept, so a slice of a flat buffer becomes a storage of its own.
/// @throws DataError naming the path of what cannot be written (stubs, sparse tensors, broken
/// UTF-8)
PickleToWrite pickle_of_value(const Value& value);

}  // namespace dalle2
