// SPDX-License-Identifier: MIT
// Names of element types: in safetensors, in Python, and as torch's storage classes.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace dalle2 {

/// "F32" and the like; nothing for types that safetensors or we do not have.
std::optional<at::ScalarType> dtype_of_safetensors(std::string_view name);
std::optional<std::string> safetensors_dtype(at::ScalarType dtype);

/// "float32": the attribute of Python's module torch, also what people are shown.
std::string python_dtype(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of_python(std::string_view name);

/// "FloatStorage"; nothing for the types that came after the storage classes (uint16, float8, ...),
/// which Python pickles with an untyped storage.
std::optional<std::string> storage_class(at::ScalarType dtype);
std::optional<at::ScalarType> dtype_of_storage_class(std::string_view name);

}  // namespace dalle2
