// SPDX-License-Identifier: MIT
// What a checkpoint holds: Python's plain objects and tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dalle2 {

class Value;
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;  ///< ordered, names unique

/// A pickled object of a class we do not know: kept as its parts, never executed.
struct StubObject;
struct List { std::vector<Value> items; };
struct Tuple { std::vector<Value> items; };
struct Dict {
  std::vector<std::pair<Value, Value>> items;  ///< insertion order
  bool ordered = false;                        ///< collections.OrderedDict
  const Value* find(const std::string& key) const;  ///< nullptr if absent
  void set(const std::string& key, Value value);    ///< replaces or appends
};

class Value {
 public:
  using Storage = std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, List,
                               Tuple, Dict, std::shared_ptr<StubObject>>;
  Storage data;
  // constructors and is_/as_ accessors follow (checkpoint layer completes them)
};

}  // namespace dalle2
