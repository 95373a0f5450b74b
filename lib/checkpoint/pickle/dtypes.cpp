// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/dtypes.h"

#include <c10/util/Exception.h>

#include <array>

namespace dalle2 {
namespace {

struct DtypeNames {
  at::ScalarType dtype;
  std::string_view python;
  std::string_view safetensors;  ///< empty: none
  std::string_view storage;      ///< empty: none
};

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

std::optional<at::ScalarType> find_dtype(std::string_view DtypeNames::*column,
                                         std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const DtypeNames& row : kDtypes) {
    if (row.*column == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<std::string> find_name(std::string_view DtypeNames::*column, at::ScalarType dtype) {
  for (const DtypeNames& row : kDtypes) {
    if (row.dtype == dtype && !(row.*column).empty()) return std::string(row.*column);
  }
  return std::nullopt;
}

}  // namespace

std::optional<at::ScalarType> dtype_of_safetensors(std::string_view name) {
  return find_dtype(&DtypeNames::safetensors, name);
}

std::optional<std::string> safetensors_dtype(at::ScalarType dtype) {
  return find_name(&DtypeNames::safetensors, dtype);
}

std::string python_dtype(at::ScalarType dtype) {
  return find_name(&DtypeNames::python, dtype).value_or(c10::toString(dtype));
}

std::optional<at::ScalarType> dtype_of_python(std::string_view name) {
  return find_dtype(&DtypeNames::python, name);
}

std::optional<std::string> storage_class(at::ScalarType dtype) {
  return find_name(&DtypeNames::storage, dtype);
}

std::optional<at::ScalarType> dtype_of_storage_class(std::string_view name) {
  return find_dtype(&DtypeNames::storage, name);
}

}  // namespace dalle2
