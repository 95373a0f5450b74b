// SPDX-License-Identifier: MIT
#include "checkpoint/lora_naming.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace dalle2 {
namespace {

using Table = std::vector<std::pair<std::string, std::string>>;  ///< tried in order

/// What a projection of attention is called.
struct Projection {
  std::string old_name, text_name, unet_name;
};
const std::array<Projection, 4> kProjections = {{{"to_q_lora", "q_proj", "to_q"},
                                                 {"to_k_lora", "k_proj", "to_k"},
                                                 {"to_v_lora", "v_proj", "to_v"},
                                                 {"to_out_lora", "out_proj", "to_out.0"}}};
/// The two matrices: as diffusers calls them, and as PEFT does.
const std::array<std::pair<std::string, std::string>, 2> kMatrices = {
    {{"up", "lora_B"}, {"down", "lora_A"}}};

/// Adds a line for each projection and matrix.
template <class Line>
void add_lines(Table& table, const Line& line) {
  for (const Projection& projection : kProjections) {
    for (const auto& [matrix, peft] : kMatrices) table.push_back(line(projection, matrix, peft));
  }
}

Table old_to_diffusers() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string&) {
    return std::pair("." + p.old_name + "." + matrix,
                     "." + p.text_name + ".lora_linear_layer." + matrix);
  });
  for (const char* name : {"k", "v", "q", "out"}) {
    table.emplace_back(fmt::format(".to_{}.lora_magnitude_vector", name),
                       fmt::format(".{}_proj.lora_magnitude_vector", name));
  }
  return table;
}

Table peft_to_diffusers() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string& peft) {
    return std::pair("." + p.text_name + "." + peft,
                     "." + p.text_name + ".lora_linear_layer." + matrix);
  });
  // No dot before it: an entry that begins with the projection is renamed, too.
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string& peft) {
    return std::pair(p.unet_name + "." + peft, p.unet_name + ".lora." + matrix);
  });
  return table;
}

void add_linear_layers(Table& table) {
  for (const auto& [matrix, peft] : kMatrices) {
    table.emplace_back(".lora_linear_layer." + matrix, "." + peft);
  }
}

Table diffusers_to_peft() {
  Table table;
  add_linear_layers(table);
  for (const auto& [matrix, peft] : kMatrices) {
    table.emplace_back("text_projection.lora." + matrix + ".weight",
                       "text_projection." + peft + ".weight");
  }
  return table;
}

Table old_to_peft() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string& peft) {
    return std::pair("." + p.old_name + "." + matrix, "." + p.text_name + "." + peft);
  });
  add_linear_layers(table);
  return table;
}

Table unet_to_peft() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string& peft) {
    return std::pair("." + p.old_name + "." + matrix, "." + p.unet_name + "." + peft);
  });
  for (const auto& [matrix, peft] : kMatrices) table.emplace_back(".lora." + matrix, "." + peft);
  table.emplace_back(".to_out.lora_magnitude_vector", ".to_out.0.lora_magnitude_vector");
  return table;
}

Table any_to_unet() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string&) {
    return std::pair("." + p.old_name + "." + matrix, "." + p.unet_name + ".lora." + matrix);
  });
  for (const auto& [matrix, peft] : kMatrices) table.emplace_back("." + peft, ".lora." + matrix);
  return table;
}

Table any_to_old() {
  Table table;
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string&) {
    return std::pair("." + p.text_name + ".lora_linear_layer." + matrix,
                     "." + p.old_name + "." + matrix);
  });
  add_lines(table, [](const Projection& p, const std::string& matrix, const std::string&) {
    return std::pair("." + p.unet_name + ".lora." + matrix, "." + p.old_name + "." + matrix);
  });
  for (const bool text : {true, false}) {
    add_lines(table, [&](const Projection& p, const std::string& matrix, const std::string& peft) {
      return std::pair("." + (text ? p.text_name : p.unet_name) + "." + peft,
                       "." + p.old_name + "." + matrix);
    });
  }
  return table;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// Of two entries that get the same name the later one stays, at the place of the first, as in a
/// dict.
StateDict renamed(const StateDict& tensors, const Table& table) {
  StateDict result;
  std::unordered_map<std::string, size_t> places;
  for (const auto& [name, tensor] : tensors) {
    std::string other = name;
    replace_all(other, ".processor.", ".");
    for (const auto& [from, to] : table) {
      if (other.find(from) == std::string::npos) continue;
      replace_all(other, from, to);
      break;
    }
    const auto [place, is_new] = places.try_emplace(other, result.size());
    if (is_new) {
      result.emplace_back(other, tensor);
    } else {
      result[place->second].second = tensor;
    }
  }
  return result;
}

bool any_contains(const StateDict& tensors, const std::string& part) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& entry) {
    return entry.first.find(part) != std::string::npos;
  });
}

[[noreturn]] void throw_unknown(const StateDict& tensors) {
  throw DataError(
      "Could not automatically infer state dict type: no name holds to_out_lora (old), "
      ".lora_A.weight (PEFT) or lora_linear_layer (diffusers); {}",
      tensors.empty() ? "there are no entries" : "the first is '" + tensors.front().first + "'");
}

}  // namespace

StateDict diffusers_naming_of_lora(const StateDict& tensors) {
  if (any_contains(tensors, "to_out_lora")) return renamed(tensors, old_to_diffusers());
  if (any_contains(tensors, ".lora_A.weight")) return renamed(tensors, peft_to_diffusers());
  if (any_contains(tensors, "lora_linear_layer")) return tensors;
  throw_unknown(tensors);
}

StateDict peft_naming_of_lora(const StateDict& tensors) {
  if (any_contains(tensors, "to_out_lora")) return renamed(tensors, old_to_peft());
  if (any_contains(tensors, "lora_linear_layer")) return renamed(tensors, diffusers_to_peft());
  throw_unknown(tensors);
}

StateDict unet_peft_naming_of_lora(const StateDict& tensors) {
  return renamed(tensors, unet_to_peft());
}

StateDict unet_naming_of_lora(const StateDict& tensors) {
  return renamed(tensors, any_to_unet());
}

StateDict old_naming_of_lora(const StateDict& tensors) {
  return renamed(tensors, any_to_old());
}

StateDict text_encoder_lora(const StateDict& tensors, const std::string& prefix) {
  StateDict own;
  for (const auto& [name, tensor] : tensors) {
    if (!name.starts_with(prefix)) continue;
    std::string rest = name;
    replace_all(rest, prefix, "");
    own.emplace_back(std::move(rest), tensor);
  }
  return peft_naming_of_lora(diffusers_naming_of_lora(own));
}

const std::vector<std::string>& lora_namings() {
  static const std::vector<std::string> words = {"diffusers", "peft", "old", "unet", "unet-peft"};
  return words;
}

StateDict with_lora_naming(const StateDict& tensors, const std::string& naming) {
  if (naming == "diffusers") return diffusers_naming_of_lora(tensors);
  if (naming == "peft") return peft_naming_of_lora(tensors);
  if (naming == "old") return old_naming_of_lora(tensors);
  if (naming == "unet") return unet_naming_of_lora(tensors);
  if (naming == "unet-peft") return unet_peft_naming_of_lora(tensors);
  std::string known;
  for (const std::string& word : lora_namings()) known += (known.empty() ? "" : ", ") + word;
  throw ConfigError("--lora-naming {}: expected one of {}", naming, known);
}

}  // namespace dalle2
