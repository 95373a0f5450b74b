// SPDX-License-Identifier: MIT
// What a checkpoint holds: Python's plain objects and tensors, and the names of their element types.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dalle2 {

class Value;

/// The deepest nesting of values, in files that are read and in those that are written.
inline constexpr int kMaxValueDepth = 200;
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;  ///< ordered, names unique

/// A pickled object of a class we do not know: kept as its parts, never executed.
struct StubObject;
struct List {
  std::vector<Value> items;
};
struct Tuple {
  std::vector<Value> items;
};
struct Bytes {
  std::string data;
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;       ///< insertion order
  bool ordered = false;                             ///< collections.OrderedDict
  const Value* find(const std::string& key) const;  ///< nullptr if absent
  void set(const std::string& key, Value value);    ///< replaces or appends
};

/// One object of a checkpoint. Copies are deep except for tensors, which share their storage.
///
///     Dict checkpoint;
///     checkpoint.set("version", "1.15.6");
///     checkpoint.set("steps", steps);  // at::Tensor
///     write_pth("model.pth", checkpoint);
class Value {
 public:
  using Storage = std::variant<std::monostate,
                               bool,
                               int64_t,
                               double,
                               std::string,
                               at::Tensor,
                               List,
                               Tuple,
                               Dict,
                               std::shared_ptr<StubObject>,
                               Bytes>;
  Storage data;

  Value() = default;  ///< None
  Value(bool value) : data(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T value) : data(static_cast<int64_t>(value)) {}
  Value(double value) : data(value) {}
  Value(const char* text) : data(std::string(text)) {}
  Value(std::string text) : data(std::move(text)) {}
  Value(at::Tensor tensor) : data(std::move(tensor)) {}
  Value(List list) : data(std::move(list)) {}
  Value(Tuple tuple) : data(std::move(tuple)) {}
  Value(Dict dict) : data(std::move(dict)) {}
  Value(Bytes bytes) : data(std::move(bytes)) {}
  Value(std::shared_ptr<StubObject> stub) : data(std::move(stub)) {}

  bool is_none() const { return std::holds_alternative<std::monostate>(data); }
  bool is_bool() const { return std::holds_alternative<bool>(data); }
  bool is_int() const { return std::holds_alternative<int64_t>(data); }
  bool is_double() const { return std::holds_alternative<double>(data); }
  bool is_string() const { return std::holds_alternative<std::string>(data); }
  bool is_tensor() const { return std::holds_alternative<at::Tensor>(data); }
  bool is_list() const { return std::holds_alternative<List>(data); }
  bool is_tuple() const { return std::holds_alternative<Tuple>(data); }
  bool is_dict() const { return std::holds_alternative<Dict>(data); }
  bool is_bytes() const { return std::holds_alternative<Bytes>(data); }
  bool is_stub() const { return std::holds_alternative<std::shared_ptr<StubObject>>(data); }

  // Each as_x throws DataError "<path>: expected X, got Y" if the value is something else; `path`
  // is the place inside the checkpoint, e.g. "/optim0/param_groups/0/lr". Cursor keeps it for the
  // caller.
  bool as_bool(const std::string& path = "") const;
  /// An int, or a tensor of one whole number (Python counts steps in tensors).
  int64_t as_int(const std::string& path = "") const;
  /// A float or int, or a tensor of one number.
  double as_double(const std::string& path = "") const;
  const std::string& as_string(const std::string& path = "") const;
  const at::Tensor& as_tensor(const std::string& path = "") const;
  /// Items of a list or tuple.
  const std::vector<Value>& as_sequence(const std::string& path = "") const;
  const Dict& as_dict(const std::string& path = "") const;
  Dict& as_dict(const std::string& path = "");

  /// Python's name of the type: "NoneType", "str", "Tensor", "OrderedDict",
  /// "packaging.version.Version".
  std::string type_name() const;
};

struct StubObject {
  enum class Kind {
    kGlobal,
    kObject
  };  ///< a class or function itself, or what calling it would give
  Kind kind = Kind::kObject;
  std::string module, name;
  std::vector<Value> args;                       ///< arguments of the constructor
  Value state;                                   ///< what __setstate__ would have got
  std::vector<Value> items;                      ///< appended items
  std::vector<std::pair<Value, Value>> entries;  ///< items set by key
  std::string full_name() const { return module + "." + name; }
};

/// A place in a checkpoint and the way there, so that an error can name it: `Cursor(checkpoint,
/// "a.pth").at("optim0").at("param_groups").at(0).at("lr").as_double()`. Refers to the checkpoint,
/// which has to outlive it.
class Cursor {
 public:
  /// @param file precedes the path in errors
  explicit Cursor(const Value& root, std::string file = "")
      : value_(&root), file_(std::move(file)) {}

  const Value& value() const { return *value_; }
  const std::string& path() const { return path_; }
  /// "a.pth: /optim0/param_groups"
  std::string where() const;
  bool has(const std::string& key) const;
  /// @throws DataError if this is not a dict or lacks the key (names the keys there are)
  Cursor at(const std::string& key) const;
  Cursor at(const char* key) const { return at(std::string(key)); }
  /// Item of a list or tuple. @throws DataError
  Cursor at(size_t index) const;
  Cursor at(int index) const { return at(static_cast<size_t>(index)); }
  std::optional<Cursor> find(const std::string& key) const;
  /// Number of items of a list, tuple or dict.
  size_t size() const;

  bool is_none() const { return value_->is_none(); }
  bool as_bool() const { return value_->as_bool(where()); }
  int64_t as_int() const { return value_->as_int(where()); }
  double as_double() const { return value_->as_double(where()); }
  const std::string& as_string() const { return value_->as_string(where()); }
  const at::Tensor& as_tensor() const { return value_->as_tensor(where()); }
  const Dict& as_dict() const { return value_->as_dict(where()); }
  /// A dict of names to tensors. @throws DataError naming the entry that is not a tensor
  StateDict as_state_dict() const;

 private:
  const Value* value_;
  std::string file_, path_;
};

/// As an OrderedDict, which is what Python's Module.state_dict() gives.
Dict to_dict(const StateDict& tensors);
/// The entry of that name or nullptr.
const at::Tensor* find_tensor(const StateDict& tensors, const std::string& name);
/// The entries whose names begin with `prefix`, without it.
StateDict strip_prefix(const StateDict& tensors, const std::string& prefix);

struct DtypeNames {
  at::ScalarType dtype;
  std::string_view python;       ///< "float32": the attribute of Python's module torch
  std::string_view safetensors;  ///< "F32"; empty: none
  /// "FloatStorage"; empty for the types that came after the storage classes (uint16, float8, ...), which
  /// Python pickles with an untyped storage.
  std::string_view storage;
};
/// The type of a name, e.g. find_dtype(&DtypeNames::safetensors, "F32"); none for what we do not have.
std::optional<at::ScalarType> find_dtype(std::string_view DtypeNames::*kind, std::string_view name);
/// The inverse. @return empty: none
std::string_view dtype_name(std::string_view DtypeNames::*kind, at::ScalarType dtype);
/// "float32", also what people are shown.
std::string python_dtype(at::ScalarType dtype);

}  // namespace dalle2
