// SPDX-License-Identifier: MIT
#include "checkpoint/inspect.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/convert.h"
#include "checkpoint/file_version.h"
#include "checkpoint/pickle/value_json.h"
#include "checkpoint/state_dict.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace dalle2 {
namespace {

constexpr size_t kMaxValueWidth = 60;
constexpr size_t kMaxNameWidth = 72;

bool is_scalar(const Value& value) {
  return !value.is_tensor() && !value.is_list() && !value.is_tuple() && !value.is_dict();
}

bool only_scalars(const std::vector<Value>& items) {
  return std::all_of(items.begin(), items.end(), is_scalar);
}

class Walk {
 public:
  explicit Walk(Inspection& inspection) : inspection_(inspection) {}

  void visit(const std::string& name, const Value& value) {
    if (value.is_tensor()) {
      add_tensor(name, value.as_tensor());
    } else if (value.is_dict() && !value.as_dict().items.empty()) {
      for (const auto& [key, child] : value.as_dict().items) {
        visit(below(name, describe(key)), child);
      }
    } else if ((value.is_list() || value.is_tuple()) && !only_scalars(value.as_sequence())) {
      size_t index = 0;
      for (const Value& child : value.as_sequence()) {
        visit(below(name, std::to_string(index++)), child);
      }
    } else {
      inspection_.entries.push_back({name, value.type_name(), false, {}, value});
    }
  }

 private:
  static std::string below(const std::string& name, const std::string& child) {
    return name.empty() ? child : name + "/" + child;
  }

  void add_tensor(const std::string& name, const at::Tensor& tensor) {
    inspection_.entries.push_back(
        {name, python_dtype(tensor.scalar_type()), true, tensor.sizes().vec(), {}});
    ++inspection_.tensor_count;
    inspection_.element_count += tensor.numel();
    inspection_.tensor_bytes += tensor.nbytes();
  }

  Inspection& inspection_;
};

/// A value as one line of a table, shortened if it is so long that it would hide the rest.
std::string in_table(const std::string& value) {
  const std::string text = one_line(value);
  if (text.size() > kMaxValueWidth) {
    size_t end = kMaxValueWidth - 3;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      --end;  // not in the middle of a UTF-8 character
    }
    return text.substr(0, end) + "...";
  }
  return text;
}

/// Which older dalle2-pytorch wrote the weights; "" for the last one, and for other weights.
std::string layout_of_file(const Cursor& root) {
  if (!root.value().is_dict()) return "";
  const Value& model = root.has("model") ? root.at("model").value() : root.value();
  StateDict weights;
  if (!model.is_dict()) return "";
  for (const auto& [name, tensor] : model.as_dict().items) {
    if (name.is_string() && tensor.is_tensor()) {
      weights.emplace_back(name.as_string(), tensor.as_tensor());
    }
  }
  const std::string kind = !strip_prefix(weights, "unets.").empty() ? "decoder"
                           : !strip_prefix(weights, "net.").empty() ? "prior"
                                                                    : "";
  if (kind.empty()) return "";
  try {
    const VersionRange fits = versions_of_tensors(weights, kind, root.where());
    const std::optional<Version> said = said_version(root);
    if (said.value_or(fits.to) == kLastVersion) return "";
    if (!said) return fmt::format("{} of dalle2-pytorch {}, by its tensors", kind, to_text(fits));
    return fmt::format("{} of dalle2-pytorch {}, networks of {}{}",
                       kind,
                       to_text(*said),
                       to_text(same_network(kind, *said)),
                       fits.contains(*said) ? "" : ", but its tensors are of " + to_text(fits));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Inspection inspect_file(const std::string& path) {
  Inspection inspection;
  inspection.path = path;
  const Value root = read_checkpoint(path);
  Walk(inspection).visit("", root);
  inspection.layout = layout_of_file(Cursor(root, path));
  return inspection;
}

std::string inspection_text(const Inspection& inspection) {
  size_t name_width = 4, type_width = 4;
  for (const InspectEntry& entry : inspection.entries) {
    name_width = std::max(name_width, std::min(one_line(entry.name).size(), kMaxNameWidth));
    type_width = std::max(type_width, std::min(entry.type.size(), kMaxNameWidth));
  }
  std::string text;
  for (const InspectEntry& entry : inspection.entries) {
    const std::string what =
        entry.is_tensor ? shape_text(entry.shape) : in_table(describe(entry.value));
    text += fmt::format("{:<{}}  {:<{}}  {}\n",
                        one_line(entry.name),
                        name_width,
                        one_line(entry.type),
                        type_width,
                        what);
  }
  if (!inspection.layout.empty()) text += inspection.layout + "\n";
  text += fmt::format("{}: {} entries, {} tensors of {} elements, {}\n",
                      one_line(inspection.path),
                      with_commas(static_cast<int64_t>(inspection.entries.size())),
                      with_commas(static_cast<int64_t>(inspection.tensor_count)),
                      with_commas(inspection.element_count),
                      human_bytes(inspection.tensor_bytes));
  return text;
}

std::string inspection_json(const Inspection& inspection) {
  Json entries = Json::array();
  for (const InspectEntry& entry : inspection.entries) {
    if (entry.is_tensor) {
      entries.push_back({{"name", entry.name}, {"dtype", entry.type}, {"shape", entry.shape}});
    } else {
      entries.push_back({{"name", entry.name},
                         {"type", entry.type},
                         {"value", Json::parse(json_of_value(entry.value))}});
    }
  }
  const Json json = {{"file", inspection.path},
                     {"layout", inspection.layout},
                     {"tensors", inspection.tensor_count},
                     {"elements", inspection.element_count},
                     {"bytes", inspection.tensor_bytes},
                     {"entries", std::move(entries)}};
  return escaped_json(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace));
}

}  // namespace dalle2
