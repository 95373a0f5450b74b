// SPDX-License-Identifier: MIT
#include "io/formats/npy.h"

#include "base/error.h"
#include "base/little_endian.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace dalle2 {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kLargestHeader = size_t{1} << 20;  // NumPy itself stops at 10,000 bytes
constexpr size_t kMostDimensions = 64;              // as NumPy

/// The header, a dict of Python whose values are texts, True or False, and tuples of integers, as JSON.
Json parse_header(std::string_view text, const std::string& origin) {
  std::string json;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\'' || c == '"') {  // a text, which has no escapes
      const size_t end = std::min(text.find(c, i + 1), text.size());
      json += fmt::format("\"{}\"", text.substr(i + 1, end - i - 1));
      i = end;
    } else if (c == ')' || c == '}') {  // a comma may stand before it
      json.erase(json.find_last_not_of(" \t\r\n") + 1);
      if (json.ends_with(',')) json.pop_back();
      json += c == ')' ? ']' : c;
    } else {
      json += c == '(' ? '[' : c == 'T' ? 't' : c == 'F' ? 'f' : c;
    }
  }
  ParsedJson parsed = parse_untrusted_json(json);
  if (!parsed.is_right()) throw DataError("{}: damaged NumPy header: {}", origin, parsed.fault);
  for (const char* key : {"descr", "fortran_order", "shape"}) {
    if (!parsed.value.is_object() || !parsed.value.contains(key))
      throw DataError("{}: NumPy header without {}", origin, key);
  }
  if (parsed.value["descr"].is_array()) {
    throw DataError("{}: a structured NumPy array (records); expected plain numbers", origin);
  }
  if (!parsed.value["descr"].is_string() || !parsed.value["fortran_order"].is_boolean()) {
    throw DataError(
        "{}: damaged NumPy header: expected a text as descr, True or False as fortran_order",
        origin);
  }
  return std::move(parsed.value);
}

std::vector<int64_t> shape_of(const Json& sizes, const std::string& origin) {
  std::vector<int64_t> shape;
  for (const Json& size : sizes) {
    const bool is_large =
        size.is_number_unsigned() && size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    if (!size.is_number_integer() || is_large) {
      throw DataError(
          "{}: NumPy header whose shape has {}; expected an integer", origin, size.dump());
    }
    if (size.get<int64_t>() < 0)
      throw DataError("{}: NumPy header with the negative dimension {}", origin, size.dump());
    shape.push_back(size.get<int64_t>());
  }
  if (!sizes.is_array() || shape.size() > kMostDimensions) {
    throw DataError(
        "{}: NumPy header without a shape of at most {} dimensions", origin, kMostDimensions);
  }
  return shape;
}

/// In the order of NpyType.
struct TypeRow {
  NpyType type;
  const char* descr;
  size_t bytes;
};
constexpr TypeRow kTypes[] = {
    {NpyType::kFloat16, "<f2", 2},
    {NpyType::kFloat32, "<f4", 4},
    {NpyType::kFloat64, "<f8", 8},
    {NpyType::kInt64, "<i8", 8},
    {NpyType::kUint8, "|u1", 1},
    {NpyType::kBool, "|b1", 1},
};

NpyType type_from_descr(const std::string& descr, const std::string& origin) {
  for (const TypeRow& row : kTypes) {
    if (descr == row.descr) return row.type;
  }
  if (descr.starts_with('>')) {
    throw DataError(
        "{}: big-endian NumPy values '{}'; expected little-endian.\n  Convert with "
        "array.astype('<{}') and save again.",
        origin,
        descr,
        descr.substr(1));
  }
  if (descr.starts_with("|O")) {
    throw DataError(
        "{}: an array of Python objects; expected float16, float32 or float64.\n  If its entries are "
        "arrays of one shape, save numpy.stack(array).astype('<f4') instead.",
        origin);
  }
  throw DataError(
      "{}: NumPy type '{}'; expected float16, float32, float64, int64, uint8 or bool (<f2 <f4 <f8 "
      "<i8 |u1 |b1).\n"
      "  Convert with array.astype('<f4') and save again.",
      origin,
      descr);
}

/// The header's text, and where the values begin.
struct Preamble {
  std::string_view header;
  size_t data_begin;
};

Preamble read_preamble(std::string_view content, const std::string& origin) {
  if (!content.starts_with(kMagic)) {
    throw DataError(
        "{}: not a NumPy .npy file ({})",
        origin,
        content.empty() ? "it is empty"
        : content.starts_with("PK")
            ? "it is an archive, as numpy.savez makes: save each of its arrays by numpy.save"
            : "it does not begin with \\x93NUMPY");
  }
  if (content.size() < 10) {
    throw DataError("{}: truncated NumPy file ({} bytes)", origin, content.size());
  }
  const int version = static_cast<unsigned char>(content[6]);
  if (version < 1 || version > 3) {
    throw DataError("{}: NumPy format version {}; expected 1, 2 or 3", origin, version);
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  if (content.size() < 8 + length_bytes) {
    throw DataError("{}: truncated NumPy file ({} bytes)", origin, content.size());
  }
  const uint64_t length = from_little_endian(content.substr(8, length_bytes));
  const size_t begin = 8 + length_bytes;
  if (length > kLargestHeader) {
    throw DataError(
        "{}: NumPy header of {} bytes; expected at most {}", origin, length, kLargestHeader);
  }
  if (length > content.size() - begin) {
    throw DataError("{}: truncated NumPy header: {} bytes announced, {} found",
                    origin,
                    length,
                    content.size() - begin);
  }
  return {content.substr(begin, length), begin + length};
}

template <class T>
T load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class T>
void convert_each(const char* bytes, size_t count, float* values) {
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(load<T>(bytes + sizeof(T) * i));
}

void convert(NpyType type, const char* bytes, size_t count, float* values) {
  switch (type) {
    case NpyType::kFloat16:
      for (size_t i = 0; i < count; ++i) {
        values[i] = float16_to_float32(load<uint16_t>(bytes + 2 * i));
      }
      break;
    case NpyType::kFloat32:
      if (count > 0) std::memcpy(values, bytes, 4 * count);
      break;
    case NpyType::kFloat64:
      convert_each<double>(bytes, count, values);
      break;
    case NpyType::kInt64:
      convert_each<int64_t>(bytes, count, values);
      break;
    case NpyType::kUint8:
      convert_each<uint8_t>(bytes, count, values);
      break;
    case NpyType::kBool:
      for (size_t i = 0; i < count; ++i) values[i] = bytes[i] != 0 ? 1.0F : 0.0F;
      break;
  }
}

/// Fortran order counts up the first axis first, C order the last one.
std::string in_c_order(const std::string& fortran, const std::vector<int64_t>& shape, size_t item) {
  std::string c_order;
  c_order.reserve(fortran.size());
  std::vector<size_t> strides(shape.size(), item);
  for (size_t axis = 1; axis < shape.size(); ++axis) {
    strides[axis] = strides[axis - 1] * static_cast<size_t>(shape[axis - 1]);
  }
  std::vector<int64_t> index(shape.size(), 0);
  size_t from = 0;
  while (c_order.size() < fortran.size()) {
    c_order.append(fortran, from, item);
    for (size_t axis = shape.size(); axis-- > 0;) {
      from += strides[axis];
      if (++index[axis] < shape[axis]) break;
      from -= strides[axis] * static_cast<size_t>(shape[axis]);
      index[axis] = 0;
    }
  }
  return c_order;
}

}  // namespace

size_t npy_item_size(NpyType type) {
  return kTypes[static_cast<size_t>(type)].bytes;
}

float float16_to_float32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fffU;
  if (magnitude < 0x0400) {
    // Zero and subnormals: integer arithmetic, so that no flush-to-zero mode of the CPU can matter.
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  // The exponent moves from bias 15 to bias 127; infinity and NaN to its largest value.
  const uint32_t exponent_shift = magnitude >= 0x7c00 ? (255U - 31U) << 23 : (127U - 15U) << 23;
  return std::bit_cast<float>(sign | ((magnitude << 13) + exponent_shift));
}

int64_t NpyArray::numel() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::vector<float> NpyArray::to_float32() const {
  std::vector<float> values(static_cast<size_t>(numel()));
  convert(type, bytes.data(), values.size(), values.data());
  return values;
}

void NpyArray::copy_row_float32(int64_t row, float* out) const {
  D2_CHECK(!shape.empty() && row >= 0 && row < shape[0], "row {} of a NumPy array", row);
  const size_t values = static_cast<size_t>(numel() / shape[0]);
  const size_t begin = static_cast<size_t>(row) * values * npy_item_size(type);
  convert(type, bytes.data() + begin, values, out);
}

NpyLayout parse_npy_layout(std::string_view begin, uint64_t file_size, const std::string& origin) {
  const Preamble preamble = read_preamble(begin, origin);
  const Json header = parse_header(preamble.header, origin);
  NpyLayout layout;
  layout.type = type_from_descr(header["descr"].get<std::string>(), origin);
  layout.shape = shape_of(header["shape"], origin);
  layout.fortran_order = header["fortran_order"].get<bool>();
  layout.data_begin = preamble.data_begin;
  // As in NumPy, a shape with a 0 is bounded too, by its other sizes: rows are counted without it.
  auto bounded = static_cast<int64_t>(npy_item_size(layout.type));
  bool too_large = false;
  for (const int64_t size : layout.shape) {
    too_large = too_large || __builtin_mul_overflow(bounded, std::max<int64_t>(size, 1), &bounded);
  }
  const bool is_empty = std::ranges::count(layout.shape, 0) > 0;
  const uint64_t expected = is_empty ? 0 : static_cast<uint64_t>(bounded);
  const uint64_t found = file_size - layout.data_begin;
  if (too_large || found != expected) {
    throw DataError("{}: {} NumPy file: shape [{}] of '{}' takes {} bytes, but there are {}",
                    origin,
                    too_large || found < expected ? "truncated" : "oversize",
                    fmt::join(layout.shape, ", "),
                    kTypes[static_cast<size_t>(layout.type)].descr,
                    too_large ? std::string("more than 2^63") : std::to_string(expected),
                    found);
  }
  return layout;
}

NpyArray parse_npy(std::string content, const std::string& origin) {
  NpyLayout layout = parse_npy_layout(content, content.size(), origin);
  NpyArray array;
  array.type = layout.type;
  array.shape = std::move(layout.shape);
  content.erase(0, layout.data_begin);
  array.bytes = std::move(content);
  if (layout.fortran_order && array.shape.size() > 1) {
    array.bytes = in_c_order(array.bytes, array.shape, npy_item_size(array.type));
  }
  return array;
}

NpyArray read_npy(const std::string& path) {
  return parse_npy(read_file(path), path);
}

std::string format_npy(NpyType type, const std::vector<int64_t>& shape, std::string_view bytes) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                   kTypes[static_cast<size_t>(type)].descr,
                                   fmt::join(shape, ", "),
                                   shape.size() == 1 ? "," : "");
  // Values begin at a multiple of 64 bytes, and the header ends in a newline, as NumPy writes it.
  header.append(63 - (kMagic.size() + 4 + header.size()) % 64, ' ');
  header += '\n';
  std::string file(kMagic);
  file += '\x01';
  file += '\0';
  append_little_endian(file, header.size(), 2);
  file += header;
  file += bytes;
  return file;
}

std::string format_npy_float32(const std::vector<int64_t>& shape, const float* values) {
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return format_npy(NpyType::kFloat32, shape, {reinterpret_cast<const char*>(values), 4 * count});
}

void write_npy_float32(const std::string& path,
                       const std::vector<int64_t>& shape,
                       const float* values) {
  write_file_atomically(path, format_npy_float32(shape, values));
}

}  // namespace dalle2
