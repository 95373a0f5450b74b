// SPDX-License-Identifier: MIT
#include "base/error.h"
#include "base/untrusted_text.h"
#include "checkpoint/dtypes.h"
#include "checkpoint/safetensors.h"
#include "io/files/atomic_file.h"

#include <torch/types.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace dalle2 {
namespace {

/// Places of the tensors in the file: the largest elements first, so that every one is aligned.
std::vector<size_t> order_in_file(const StateDict& tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  return order;
}

void check_text(const std::string& path, const std::string& what, const std::string& text) {
  if (const auto fault = utf8_fault(text)) {
    throw DataError("{}: {} '{}' cannot be saved: {}", path, what, as_utf8(text), *fault);
  }
}

void check_metadata(const std::string& path, const std::map<std::string, std::string>& metadata) {
  for (const auto& [key, text] : metadata) {
    check_text(path, "the metadata's key", key);
    check_text(path, "the metadata", text);
  }
}

void check_tensors(const std::string& path, const StateDict& tensors) {
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.layout() != at::kStrided ||
        !safetensors_dtype(tensor.scalar_type())) {
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
  if (!metadata.empty()) {
    header += "\"__metadata__\":" + nlohmann::json(metadata).dump();
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    header += header.size() > 1 ? "," : "";
    header += nlohmann::json(name).dump();
    header += fmt::format(R"(:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})",
                          *safetensors_dtype(tensor.scalar_type()),
                          nlohmann::json(tensor.sizes().vec()).dump(),
                          begins[i],
                          begins[i] + tensor.nbytes());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::string& path,
                       const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_tensors(path, tensors);
  check_metadata(path, metadata);
  const std::vector<size_t> order = order_in_file(tensors);
  std::vector<uint64_t> begins(tensors.size());
  uint64_t end = 0;
  for (const size_t i : order) {
    begins[i] = end;
    end += tensors[i].second.nbytes();
  }
  const std::string header = header_of(tensors, begins, metadata);

  AtomicFile file(path);
  const auto length = static_cast<uint64_t>(header.size());
  std::string length_bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    length_bytes += static_cast<char>(length >> shift);
  }
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
