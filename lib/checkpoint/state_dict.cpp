// SPDX-License-Identifier: MIT
#include "checkpoint/state_dict.h"

#include "base/error.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <array>
#include <cmath>

namespace dalle2 {
namespace {

constexpr size_t kMaxKeysShown = 12;

[[noreturn]] void throw_type_error(const std::string& path,
                                   const std::string& expected,
                                   const Value& got) {
  throw DataError(
      "{}: expected {}, got {}", path.empty() ? "value" : path, expected, got.type_name());
}

/// The number in a tensor of one element, as the reference keeps its counters.
std::optional<double> number_in_tensor(const Value& value) {
  const auto* tensor = std::get_if<at::Tensor>(&value.data);
  if (tensor == nullptr || !tensor->defined() || tensor->numel() != 1 || tensor->is_complex() ||
      tensor->scalar_type() == at::kBool) {
    return std::nullopt;
  }
  return tensor->to(at::kCPU, at::kDouble).reshape({-1}).data_ptr<double>()[0];
}

std::string names_of(const Dict& dict) {
  std::string names;
  size_t shown = 0;
  for (const auto& [key, value] : dict.items) {
    if (shown++ == kMaxKeysShown) {
      return names + fmt::format(", ... ({} in all)", dict.items.size());
    }
    names += (names.empty() ? "" : ", ");
    names += key.is_string() ? key.as_string() : fmt::format("({})", key.type_name());
  }
  return names.empty() ? "nothing" : names;
}

constexpr std::array kDtypes = {
    DtypeNames{at::kFloat, "float32", "F32", "FloatStorage"},
    DtypeNames{at::kDouble, "float64", "F64", "DoubleStorage"},
    DtypeNames{at::kHalf, "float16", "F16", "HalfStorage"},
    DtypeNames{at::kBFloat16, "bfloat16", "BF16", "BFloat16Storage"},
    DtypeNames{at::kLong, "int64", "I64", "LongStorage"},
    DtypeNames{at::kInt, "int32", "I32", "IntStorage"},
    DtypeNames{at::kShort, "int16", "I16", "ShortStorage"},
    DtypeNames{at::kChar, "int8", "I8", "CharStorage"},
    DtypeNames{at::kByte, "uint8", "U8", "ByteStorage"},
    DtypeNames{at::kBool, "bool", "BOOL", "BoolStorage"},
    DtypeNames{at::kComplexFloat, "complex64", "C64", "ComplexFloatStorage"},
    DtypeNames{at::kComplexDouble, "complex128", "", "ComplexDoubleStorage"},
    DtypeNames{at::ScalarType::UInt16, "uint16", "U16", ""},
    DtypeNames{at::ScalarType::UInt32, "uint32", "U32", ""},
    DtypeNames{at::ScalarType::UInt64, "uint64", "U64", ""},
    DtypeNames{at::ScalarType::Float8_e4m3fn, "float8_e4m3fn", "F8_E4M3", ""},
    DtypeNames{at::ScalarType::Float8_e5m2, "float8_e5m2", "F8_E5M2", ""},
    DtypeNames{at::ScalarType::Float8_e8m0fnu, "float8_e8m0fnu", "F8_E8M0", ""},
    DtypeNames{at::ScalarType::Float8_e4m3fnuz, "float8_e4m3fnuz", "", ""},
    DtypeNames{at::ScalarType::Float8_e5m2fnuz, "float8_e5m2fnuz", "", ""},
};

}  // namespace

const Value* Dict::find(const std::string& key) const {
  for (const auto& [name, value] : items) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

void Dict::set(const std::string& key, Value value) {
  for (auto& [name, old] : items) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text != nullptr && *text == key) {
      old = std::move(value);
      return;
    }
  }
  items.emplace_back(key, std::move(value));
}

std::string Value::type_name() const {
  if (const auto* stub = std::get_if<std::shared_ptr<StubObject>>(&data)) {
    return (*stub)->full_name();
  }
  if (is_dict()) return as_dict().ordered ? "OrderedDict" : "dict";
  constexpr std::array kNames = {
      "None", "bool", "int", "float", "str", "Tensor", "list", "tuple", "", "", "bytes"};
  static_assert(kNames.size() == std::variant_size_v<Storage>);
  return kNames[data.index()];
}

bool Value::as_bool(const std::string& path) const {
  if (const auto* value = std::get_if<bool>(&data)) return *value;
  const auto* tensor = std::get_if<at::Tensor>(&data);
  if (tensor != nullptr && tensor->defined() && tensor->scalar_type() == at::kBool &&
      tensor->numel() == 1) {
    return tensor->item<bool>();
  }
  throw_type_error(path, "a bool", *this);
}

int64_t Value::as_int(const std::string& path) const {
  if (const auto* value = std::get_if<int64_t>(&data)) return *value;
  const auto* tensor = std::get_if<at::Tensor>(&data);
  if (tensor != nullptr && tensor->defined() && tensor->scalar_type() == at::kLong &&
      tensor->numel() == 1) {
    return tensor->item<int64_t>();
  }
  const auto number = number_in_tensor(*this);
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!number || std::floor(*number) != *number || std::abs(*number) > kExact) {
    throw_type_error(path, "a whole number", *this);
  }
  return static_cast<int64_t>(*number);
}

double Value::as_double(const std::string& path) const {
  if (const auto* value = std::get_if<double>(&data)) return *value;
  if (const auto* value = std::get_if<int64_t>(&data)) return static_cast<double>(*value);
  const auto number = number_in_tensor(*this);
  if (!number) throw_type_error(path, "a number", *this);
  return *number;
}

const std::string& Value::as_string(const std::string& path) const {
  if (const auto* value = std::get_if<std::string>(&data)) return *value;
  throw_type_error(path, "a str", *this);
}

const at::Tensor& Value::as_tensor(const std::string& path) const {
  const auto* value = std::get_if<at::Tensor>(&data);
  if (value != nullptr && value->defined()) return *value;
  throw_type_error(path, "a Tensor", *this);
}

const std::vector<Value>& Value::as_sequence(const std::string& path) const {
  if (const auto* list = std::get_if<List>(&data)) return list->items;
  if (const auto* tuple = std::get_if<Tuple>(&data)) return tuple->items;
  throw_type_error(path, "a list or tuple", *this);
}

const Dict& Value::as_dict(const std::string& path) const {
  if (const auto* dict = std::get_if<Dict>(&data)) return *dict;
  throw_type_error(path, "a dict", *this);
}

Dict& Value::as_dict(const std::string& path) {
  return const_cast<Dict&>(static_cast<const Value*>(this)->as_dict(path));
}

std::string Cursor::where() const {
  if (path_.empty()) return file_.empty() ? "/" : file_;
  return file_.empty() ? path_ : file_ + ": " + path_;
}

bool Cursor::has(const std::string& key) const {
  return value_->is_dict() && value_->as_dict().find(key) != nullptr;
}

Cursor Cursor::at(const std::string& key) const {
  const Dict& dict = value_->as_dict(where());
  const Value* child = dict.find(key);
  if (child == nullptr) {
    throw DataError("{}: expected an entry '{}', got {}", where(), key, names_of(dict));
  }
  Cursor cursor(*child, file_);
  cursor.path_ = path_ + "/" + key;
  return cursor;
}

Cursor Cursor::at(size_t index) const {
  const std::vector<Value>& items = value_->as_sequence(where());
  if (index >= items.size()) {
    throw DataError("{}: expected at least {} items, got {}", where(), index + 1, items.size());
  }
  Cursor cursor(items[index], file_);
  cursor.path_ = path_ + "/" + std::to_string(index);
  return cursor;
}

std::optional<Cursor> Cursor::find(const std::string& key) const {
  if (!has(key)) return std::nullopt;
  return at(key);
}

size_t Cursor::size() const {
  return value_->is_dict() ? value_->as_dict().items.size() : value_->as_sequence(where()).size();
}

StateDict Cursor::as_state_dict() const {
  StateDict tensors;
  for (const auto& [key, value] : value_->as_dict(where()).items) {
    const std::string& name = key.as_string(where() + " (a key)");
    tensors.emplace_back(name, value.as_tensor(where() + "/" + name));
  }
  return tensors;
}

Dict to_dict(const StateDict& tensors) {
  Dict dict;
  dict.ordered = true;
  dict.items.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) dict.items.emplace_back(name, tensor);
  return dict;
}

const at::Tensor* find_tensor(const StateDict& tensors, const std::string& name) {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return &tensor;
  }
  return nullptr;
}

StateDict strip_prefix(const StateDict& tensors, const std::string& prefix) {
  StateDict result;
  for (const auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), tensor);
  }
  return result;
}

std::optional<at::ScalarType> find_dtype(std::string_view DtypeNames::*kind,
                                         std::string_view name) {
  for (const DtypeNames& row : kDtypes) {
    if (!name.empty() && row.*kind == name) return row.dtype;
  }
  return std::nullopt;
}

std::string_view dtype_name(std::string_view DtypeNames::*kind, at::ScalarType dtype) {
  for (const DtypeNames& row : kDtypes) {
    if (row.dtype == dtype) return row.*kind;
  }
  return "";
}

std::string python_dtype(at::ScalarType dtype) {
  const std::string_view name = dtype_name(&DtypeNames::python, dtype);
  return name.empty() ? c10::toString(dtype) : std::string(name);
}

}  // namespace dalle2
