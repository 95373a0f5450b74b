// SPDX-License-Identifier: MIT
#include "checkpoint/archive/safetensors.h"

#include "base/error.h"
#include "base/little_endian.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/mapped_file.h"
#include "io/files/atomic_file.h"

#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace dalle2 {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the Python package's limit
constexpr uint64_t kLengthBytes = 8;
constexpr size_t kMostDimensions = 64;

struct TensorEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;  ///< of its data, behind the header
};

struct Header {
  std::vector<TensorEntry> entries;
  std::map<std::string, std::string> metadata;
};

uint64_t header_length(const MappedFile& file) {
  if (file.size() < kLengthBytes) {
    throw DataError(
        "{}: not a safetensors file: expected a header, got {} bytes", file.path(), file.size());
  }
  const uint64_t length = from_little_endian(file.bytes(0, kLengthBytes));
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    throw DataError(
        "{}: not a safetensors file, or truncated: its header should have {} bytes, the file has "
        "{}{}",
        file.path(),
        length,
        file.size(),
        kDamagedAdvice);
  }
  return length;
}

bool is_list_of_counts(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& number) {
           return number.is_number_unsigned() &&
                  number.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
         });
}

/// @param json {dtype, shape, data_offsets} @throws DataError
TensorEntry entry_of(const std::string& name, const Json& json, const std::string& path) {
  constexpr size_t kMostShown = 100;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  size_t known = 0;
  for (const auto& [key, value] : json.items()) {
    const bool is_list = is_list_of_counts(value) && value.size() <= kMostDimensions;
    if (key == "dtype" && value.is_string()) {
      dtype = value;
    } else if (key == "shape" && is_list) {
      value.get_to(shape);
    } else if (key == "data_offsets" && is_list) {
      value.get_to(offsets);
    } else {
      break;
    }
    ++known;
  }
  if (known != 3 || json.size() != 3) {
    throw DataError(
        "{}: safetensors header: '{}': expected an object with dtype, shape (of up to {} dimensions) and "
        "data_offsets, got {}",
        path,
        name,
        kMostDimensions,
        as_utf8(json.dump().substr(0, kMostShown)));
  }
  const auto fail = [&](const std::string& text) {
    throw DataError("{}: tensor '{}': {}", path, name, text);
  };
  const auto type = find_dtype(&DtypeNames::safetensors, dtype);
  if (!type) fail(fmt::format("unknown element type '{}'", dtype));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) fail("expected data_offsets [begin, end]");
  uint64_t bytes = c10::elementSize(*type);
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes))
      fail("its shape overflows");
  }
  const uint64_t room = offsets[1] - offsets[0];
  if (room != bytes) fail(fmt::format("its shape needs {} bytes, its place has {}", bytes, room));
  return {name, *type, std::move(shape), offsets[0], offsets[1]};
}

/// {name: {dtype, shape, data_offsets}, __metadata__: {..}} @throws DataError for another form
Header parse_header(const MappedFile& file, uint64_t length) {
  const std::string where = file.path() + ": safetensors header";
  const ParsedJson parsed = parse_untrusted_json(file.bytes(kLengthBytes, length));
  if (!parsed.is_right()) throw DataError("{}: {}", where, parsed.fault);
  if (!parsed.twice.empty()) throw DataError("{}: {} occurs twice", where, parsed.twice.front());
  if (!parsed.value.is_object()) throw DataError("{}: expected an object of tensors", where);
  Header header;
  for (const auto& [name, json] : parsed.value.items()) {
    if (name != "__metadata__") {
      header.entries.push_back(entry_of(name, json, file.path()));
      continue;
    }
    if (!json.is_object()) throw DataError("{}: __metadata__: expected an object of texts", where);
    for (const auto& [key, text] : json.items()) {
      if (!text.is_string())
        throw DataError(
            "{}: __metadata__/{}: expected a text, got {}", where, key, text.type_name());
      header.metadata[key] = text;
    }
  }
  return header;
}

/// The places in the order of the file have to cover the data without a hole or an overlap.
void check_coverage(const std::string& path,
                    const std::vector<TensorEntry>& entries,
                    uint64_t data_bytes) {
  std::vector<const TensorEntry*> order;
  order.reserve(entries.size());
  for (const TensorEntry& entry : entries) order.push_back(&entry);
  std::ranges::sort(
      order, {}, [](const TensorEntry* each) { return std::pair(each->begin, each->end); });
  uint64_t end = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != end) {
      throw DataError("{}: tensor '{}': {} before it: expected its data at byte {}, got {}",
                      path,
                      entry->name,
                      entry->begin < end ? "an overlap" : "a hole",
                      end,
                      entry->begin);
    }
    end = entry->end;
  }
  if (end != data_bytes) {
    throw DataError("{}: {}: the header describes {} bytes of data, the file has {}{}",
                    path,
                    end > data_bytes ? "cut off" : "trailing bytes",
                    end,
                    data_bytes,
                    kDamagedAdvice);
  }
}

std::string_view format_dtype(const at::Tensor& tensor) {
  return dtype_name(&DtypeNames::safetensors, tensor.scalar_type());
}

/// Places of the tensors in the file: the largest elements first, so that every one is aligned.
std::vector<size_t> order_in_file(const StateDict& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, std::ranges::greater(), [&](size_t i) { return tensors[i].second.element_size(); });
  return order;
}

void check_text(const std::string& path, const std::string& what, const std::string& text) {
  if (const auto fault = utf8_fault(text)) {
    throw DataError("{}: {} '{}' cannot be saved: {}", path, what, as_utf8(text), *fault);
  }
}

void check_tensors(const std::string& path, const StateDict& tensors) {
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || format_dtype(tensor).empty()) {
      throw DataError(
          "{}: tensor '{}' cannot be saved: the format has no {}",
          path,
          name,
          tensor.defined() ? python_dtype(tensor.scalar_type()) + " of that kind" : "undefined");
    }
    check_text(path, "the name", name);
    if (name == "__metadata__" || !names.insert(name).second) {
      throw DataError("{}: the name '{}' is given twice or reserved", path, name);
    }
  }
}

std::string header_of(const StateDict& tensors,
                      const std::vector<uint64_t>& begins,
                      const std::map<std::string, std::string>& metadata) {
  // Written by hand: an ordered JSON object would look every name up among all others.
  std::string header = "{";
  if (!metadata.empty()) header += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    header += header.size() > 1 ? "," : "";
    header += nlohmann::json(name).dump();
    header += fmt::format(R"(:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          format_dtype(tensor),
                          nlohmann::json(tensor.sizes().vec()).dump(),
                          begins[i],
                          begins[i] + tensor.nbytes());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

}  // namespace

SafetensorsFile read_safetensors(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  const uint64_t length = header_length(*file);
  Header header = parse_header(*file, length);
  const uint64_t data_begin = kLengthBytes + length;
  check_coverage(path, header.entries, file->size() - data_begin);

  SafetensorsFile result;
  result.metadata = std::move(header.metadata);
  result.tensors.reserve(header.entries.size());
  for (TensorEntry& entry : header.entries) {
    at::Tensor tensor = tensor_in_file(file, data_begin + entry.begin, entry.shape, entry.dtype);
    result.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return result;
}

void write_safetensors(const std::string& path,
                       const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_tensors(path, tensors);
  for (const auto& [key, text] : metadata) {
    check_text(path, "the metadata's key", key);
    check_text(path, "the metadata", text);
  }
  const std::vector<size_t> order = order_in_file(tensors);
  std::vector<uint64_t> begins(tensors.size());
  uint64_t end = 0;
  for (const size_t i : order) {
    begins[i] = end;
    end += tensors[i].second.nbytes();
  }
  const std::string header = header_of(tensors, begins, metadata);

  AtomicFile file(path);
  std::string length_bytes;
  append_little_endian(length_bytes, header.size(), kLengthBytes);
  file.write(length_bytes.data(), length_bytes.size());
  file.write(header.data(), header.size());
  for (const size_t i : order) {
    const at::Tensor plain =
        tensors[i].second.detach().cpu().resolve_conj().resolve_neg().contiguous();
    file.write(plain.const_data_ptr(), plain.nbytes());
  }
  file.commit();
}

}  // namespace dalle2
