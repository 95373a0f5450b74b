// SPDX-License-Identifier: MIT
#include "checkpoint/lora/lora_naming.h"

#include "base/error.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <unordered_map>

namespace dalle2 {
namespace {

/// Tried in order. A line with {old}, {text} or {unet} stands for one of each projection, one with
/// {matrix} or {peft} for both matrices.
using Pattern = std::pair<const char*, const char*>;
using Names = std::vector<std::pair<std::string, std::string>>;

/// What a projection of attention is called.
struct Projection {
  const char *plain, *old_name, *text_name, *unet_name;
};
constexpr std::array<Projection, 4> kProjections = {
    {{"to_q", "to_q_lora", "q_proj", "to_q"},
     {"to_k", "to_k_lora", "k_proj", "to_k"},
     {"to_v", "to_v_lora", "v_proj", "to_v"},
     {"to_out", "to_out_lora", "out_proj", "to_out.0"}}};
/// The two matrices: as diffusers calls them, and as PEFT does.
constexpr std::array<Pattern, 2> kMatrices = {{{"up", "lora_B"}, {"down", "lora_A"}}};

const std::vector<Pattern> kOldToDiffusers = {
    {".{old}.{matrix}", ".{text}.lora_linear_layer.{matrix}"},
    {".{plain}.lora_magnitude_vector", ".{text}.lora_magnitude_vector"}};
// No dot before {unet}: an entry that begins with the projection is renamed too.
const std::vector<Pattern> kPeftToDiffusers = {
    {".{text}.{peft}", ".{text}.lora_linear_layer.{matrix}"},
    {"{unet}.{peft}", "{unet}.lora.{matrix}"}};
const std::vector<Pattern> kDiffusersToPeft = {
    {".lora_linear_layer.{matrix}", ".{peft}"},
    {"text_projection.lora.{matrix}.weight", "text_projection.{peft}.weight"}};
const std::vector<Pattern> kOldToPeft = {{".{old}.{matrix}", ".{text}.{peft}"},
                                         {".lora_linear_layer.{matrix}", ".{peft}"}};
const std::vector<Pattern> kUnetToPeft = {
    {".{old}.{matrix}", ".{unet}.{peft}"},
    {".lora.{matrix}", ".{peft}"},
    {".to_out.lora_magnitude_vector", ".to_out.0.lora_magnitude_vector"}};
const std::vector<Pattern> kAnyToUnet = {{".{old}.{matrix}", ".{unet}.lora.{matrix}"},
                                         {".{peft}", ".lora.{matrix}"}};
const std::vector<Pattern> kAnyToOld = {{".{text}.lora_linear_layer.{matrix}", ".{old}.{matrix}"},
                                        {".{unet}.lora.{matrix}", ".{old}.{matrix}"},
                                        {".{text}.{peft}", ".{old}.{matrix}"},
                                        {".{unet}.{peft}", ".{old}.{matrix}"}};

Names names_of(const std::vector<Pattern>& patterns) {
  Names names;
  for (const auto& [from, to] : patterns) {
    for (const Projection& one : kProjections) {
      for (const auto& [matrix, peft] : kMatrices) {
        const auto filled = [&, matrix = matrix, peft = peft](const char* pattern) {
          return fmt::format(fmt::runtime(pattern),
                             fmt::arg("plain", one.plain),
                             fmt::arg("old", one.old_name),
                             fmt::arg("text", one.text_name),
                             fmt::arg("unet", one.unet_name),
                             fmt::arg("matrix", matrix),
                             fmt::arg("peft", peft));
        };
        names.emplace_back(filled(from), filled(to));
      }
    }
  }
  return names;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

/// Of two entries that get the same name the later one stays, at the place of the first, as in a
/// dict.
StateDict renamed(const StateDict& tensors, const std::vector<Pattern>& patterns) {
  const Names names = names_of(patterns);
  StateDict result;
  std::unordered_map<std::string, size_t> places;
  for (const auto& [name, tensor] : tensors) {
    std::string other = name;
    replace_all(other, ".processor.", ".");
    for (const auto& [from, to] : names) {
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

using Conversion = std::function<StateDict(const StateDict&)>;

Conversion by(const std::vector<Pattern>& patterns) {
  return [&patterns](const StateDict& tensors) { return renamed(tensors, patterns); };
}

StateDict to_diffusers(const StateDict& tensors) {
  if (any_contains(tensors, "to_out_lora")) return renamed(tensors, kOldToDiffusers);
  if (any_contains(tensors, ".lora_A.weight")) return renamed(tensors, kPeftToDiffusers);
  if (any_contains(tensors, "lora_linear_layer")) return tensors;
  throw_unknown(tensors);
}

StateDict to_peft(const StateDict& tensors) {
  if (any_contains(tensors, "to_out_lora")) return renamed(tensors, kOldToPeft);
  if (any_contains(tensors, "lora_linear_layer")) return renamed(tensors, kDiffusersToPeft);
  throw_unknown(tensors);
}

}  // namespace

StateDict with_lora_naming(const StateDict& tensors, const std::string& naming) {
  const std::pair<const char*, Conversion> conversions[] = {{"diffusers", &to_diffusers},
                                                            {"peft", &to_peft},
                                                            {"old", by(kAnyToOld)},
                                                            {"unet", by(kAnyToUnet)},
                                                            {"unet-peft", by(kUnetToPeft)}};
  std::string known;
  for (const auto& [word, convert] : conversions) {
    if (naming == word) return convert(tensors);
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  throw ConfigError("--lora-naming {}: expected one of {}", naming, known);
}

}  // namespace dalle2
