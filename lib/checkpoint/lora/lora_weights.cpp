// SPDX-License-Identifier: MIT
#include "checkpoint/lora/lora_weights.h"

#include "base/error.h"
#include "base/text.h"

#include <torch/torch.h>

#include <string_view>
#include <unordered_map>

namespace dalle2 {
namespace {

constexpr std::string_view kDown = ".lora.down.weight";
constexpr std::string_view kUp = ".lora.up.weight";
constexpr std::string_view kAlpha = ".alpha";

/// The layer of an entry that ends in `end`.
std::optional<std::string> layer_of(const std::string& name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  return name.substr(0, name.size() - end.size());
}

void check_halves(const std::string& layer, const LoraWeights& adapter, const std::string& where) {
  if (!adapter.down.defined() || !adapter.up.defined()) {
    throw DataError("{}: the adapter of '{}' has no '{}'",
                    where,
                    layer,
                    adapter.down.defined() ? "up" : "down");
  }
  const bool fits = adapter.down.dim() >= 2 && adapter.up.dim() >= 2 &&
                    adapter.up.size(1) == adapter.down.size(0) && adapter.down.size(0) > 0;
  if (!fits) {
    throw DataError("{}: the adapter of '{}': 'down' [rank, in] is {}, 'up' [out, rank] is {}",
                    where,
                    layer,
                    c10::str(adapter.down.sizes()),
                    c10::str(adapter.up.sizes()));
  }
}

at::Tensor as_float(const at::Tensor& tensor) {
  return tensor.is_floating_point() ? tensor.to(at::kFloat) : tensor;
}

at::Tensor merged(const at::Tensor& weight, const LoraWeights& adapter, double scale) {
  const double strength = scale * adapter.alpha / static_cast<double>(adapter.down.size(0));
  const at::Tensor change = at::matmul(adapter.up.flatten(1).to(weight.device(), at::kFloat),
                                       adapter.down.flatten(1).to(weight.device(), at::kFloat));
  return as_float(weight) + (change * strength).view(weight.sizes());
}

at::Tensor part_of_the_way(const at::Tensor& from, const at::Tensor& to, double share) {
  if (share == 1.0) return to;  // bit for bit
  return as_float(from) + (as_float(to) - as_float(from)) * share;
}

/// What does not fit the weights that are there.
std::vector<std::string> misfits(const std::unordered_map<std::string, at::Tensor>& weights,
                                 const LoraAdapters& adapters) {
  std::vector<std::string> faults;
  for (const auto& [layer, adapter] : adapters.layers) {
    const auto weight = weights.find(layer + ".weight");
    if (weight == weights.end()) {
      faults.push_back(layer + ": not there");
    } else if (weight->second.dim() < 2 || weight->second.size(0) != adapter.up.size(0) ||
               weight->second[0].numel() != adapter.down[0].numel()) {
      faults.push_back(fmt::format("{}: a weight {} for an adapter of 'down' {} and 'up' {}",
                                   layer,
                                   c10::str(weight->second.sizes()),
                                   c10::str(adapter.down.sizes()),
                                   c10::str(adapter.up.sizes())));
    }
  }
  for (const auto& [name, tensor] : adapters.others) {
    const auto weight = weights.find(name);
    if (weight == weights.end()) {
      faults.push_back(name + ": not there");
    } else if (weight->second.sizes() != tensor.sizes()) {
      faults.push_back(fmt::format("{}: expected {}, got {}",
                                   name,
                                   c10::str(weight->second.sizes()),
                                   c10::str(tensor.sizes())));
    }
  }
  return faults;
}

}  // namespace

LoraAdapters lora_adapters(const StateDict& tensors,
                           std::optional<double> alpha,
                           const std::string& where) {
  LoraAdapters adapters;
  std::unordered_map<std::string, size_t> places;
  const auto adapter_of = [&](const std::string& layer) -> LoraWeights& {
    const auto [place, is_new] = places.try_emplace(layer, adapters.layers.size());
    if (is_new) adapters.layers.emplace_back(layer, LoraWeights{});
    return adapters.layers[place->second].second;
  };
  for (const auto& [name, tensor] : tensors) {
    if (const auto down = layer_of(name, kDown)) {
      adapter_of(*down).down = tensor;
    } else if (const auto up = layer_of(name, kUp)) {
      adapter_of(*up).up = tensor;
    }
  }
  for (auto& [layer, adapter] : adapters.layers) {
    check_halves(layer, adapter, where);
    adapter.alpha = alpha.value_or(static_cast<double>(adapter.down.size(0)));
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string layer =
        name.ends_with(kAlpha) ? name.substr(0, name.size() - kAlpha.size()) : "";
    if (places.contains(layer) && tensor.numel() == 1) {
      adapter_of(layer).alpha = tensor.item<double>();
    } else if (!layer_of(name, kDown) && !layer_of(name, kUp)) {
      adapters.others.emplace_back(name, tensor);
    }
  }
  return adapters;
}

bool has_lora(const StateDict& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (layer_of(name, kDown)) return true;
  }
  return false;
}

bool has_lora(const Cursor& checkpoint) {
  const Cursor weights = checkpoint.has("model") ? checkpoint.at("model") : checkpoint;
  for (const auto& [key, value] : weights.as_dict().items) {
    if (key.is_string() && layer_of(key.as_string(), kDown)) return true;
  }
  return false;
}

StateDict merged_lora(const StateDict& weights,
                      const LoraAdapters& adapters,
                      const std::string& where,
                      double scale) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::string> faults = misfits({weights.begin(), weights.end()}, adapters);
  if (!faults.empty()) {
    throw DataError("{}: the adapters belong to another network:{}", where, indented_list(faults));
  }
  std::unordered_map<std::string, const LoraWeights*> of_weight;
  for (const auto& [layer, adapter] : adapters.layers) of_weight[layer + ".weight"] = &adapter;
  StateDict result;
  for (const auto& [name, tensor] : weights) {
    const auto adapter = of_weight.find(name);
    const at::Tensor* other = find_tensor(adapters.others, name);
    const at::Tensor base = other == nullptr ? tensor : part_of_the_way(tensor, *other, scale);
    result.emplace_back(
        name, adapter == of_weight.end() ? as_float(base) : merged(base, *adapter->second, scale));
  }
  return result;
}

StateDict merged_lora(const StateDict& weights,
                      double alpha,
                      const std::string& where,
                      double scale) {
  StateDict base, halves;
  for (const auto& entry : weights) {
    const bool is_half = layer_of(entry.first, kDown) || layer_of(entry.first, kUp);
    (is_half ? halves : base).push_back(entry);
  }
  return merged_lora(base, lora_adapters(halves, alpha, where), where, scale);
}

}  // namespace dalle2
