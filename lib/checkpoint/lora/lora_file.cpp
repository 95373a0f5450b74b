// SPDX-License-Identifier: MIT
#include "checkpoint/lora/lora_file.h"

#include <torch/torch.h>

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/convert.h"

#include <set>
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

/// {"unets.0.r": 4, "unets.0.lora_alpha": 8.0, "unets.0.target_modules": [...], ...}
std::string adapter_metadata(const LoraFile& file) {
  std::set<std::string> networks;
  for (const auto& [name, tensor] : file.tensors) {
    networks.insert(name.substr(0, name.find('.', name.find('.') + 1) + 1));
  }
  nlohmann::json json = nlohmann::json::object();
  for (const std::string& network : networks) {
    json[network + "r"] = file.info.rank;
    json[network + "lora_alpha"] = file.info.alpha;
    json[network + "target_modules"] = file.info.targets;
  }
  // Names that are not UTF-8 are refused with the tensors that have them.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// In a file that knows one network, `unet.` is our first unet.
std::string numbered_unet(const std::string& name) {
  const std::string one = "unet.";
  return name.starts_with(one) ? "unets.0." + name.substr(one.size()) : name;
}

std::optional<double> alpha_of(const std::map<std::string, std::string>& metadata,
                               const std::string& path) {
  const auto text = metadata.find("alpha");
  if (text == metadata.end()) return std::nullopt;
  const Json number = parse_untrusted_json(text->second).value;
  if (!number.is_number()) {
    throw DataError("{}: metadata \"alpha\": expected a number, got '{}'", path, text->second);
  }
  return number.get<double>();
}

void check_scales(const LoraChoice& choice, bool has_own, const std::string& where) {
  for (const double scale : choice.scales) {
    if (!std::isfinite(scale)) throw ConfigError("--lora-scale: expected a number, got {}", scale);
  }
  if (choice.scales.empty()) return;
  if (choice.files.empty() && !has_own) {
    throw ConfigError(
        "--lora-scale: has no effect: {} holds no adapters\n  Name a file of adapters with --lora, "
        "or leave the option out.",
        where);
  }
  const size_t most = std::max<size_t>(choice.files.size(), 1);
  if (choice.scales.size() == 1 || choice.scales.size() == most) return;
  throw ConfigError("--lora-scale: expected one number{}, got {}",
                    most > 1 ? fmt::format(", or one for each of the {} --lora files", most) : "",
                    choice.scales.size());
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
    const std::string layer = layer_of(name, kAlpha).value_or("");
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

Dict to_dict(const LoraInfo& info) {
  Dict entry;
  entry.set("rank", info.rank);
  entry.set("alpha", info.alpha);
  List targets;
  for (const std::string& target : info.targets) targets.items.emplace_back(target);
  entry.set("targets", std::move(targets));
  return entry;
}

LoraInfo lora_info_of(const Cursor& entry) {
  LoraInfo info;
  info.rank = entry.at("rank").as_int();
  info.alpha = entry.at("alpha").as_double();
  for (size_t i = 0; i < entry.at("targets").size(); ++i) {
    info.targets.push_back(entry.at("targets").at(i).as_string());
  }
  return info;
}

void write_lora_file(const std::string& path, const LoraFile& file) {
  write_safetensors(path,
                    file.tensors,
                    {{"format", "pt"},
                     {"rank", std::to_string(file.info.rank)},
                     {"alpha", nlohmann::json(file.info.alpha).dump()},
                     {"targets", nlohmann::json(file.info.targets).dump()},
                     {"lora_adapter_metadata", adapter_metadata(file)},
                     {kRunIdOfLora, file.run_id}});
}

LoraAdapters read_lora_file(const std::string& path) {
  StateDict tensors;
  std::optional<double> alpha;
  if (path.ends_with(".safetensors")) {
    SafetensorsFile file = read_safetensors(path);
    alpha = alpha_of(file.metadata, path);
    tensors = std::move(file.tensors);
  } else {
    const Value root = read_checkpoint(path);
    tensors = Cursor(root, path).as_state_dict();
  }
  if (!has_lora(tensors)) {
    throw DataError(
        "{}: no adapters: expected names like unets.0.mid_attn.fn.fn.to_q.lora.down.weight, as this "
        "program writes them, or unet.LAYER.lora.down.weight, as diffusers does; got {}\n"
        "  `dalle2-train inspect {}` lists what it holds. Give the adapters of another program (PEFT, "
        "kohya) one of these two forms first.",
        path,
        tensors.empty() ? "no tensors" : printable(tensors.front().first),
        path);
  }
  for (auto& [name, tensor] : tensors) name = numbered_unet(name);
  return lora_adapters(tensors, alpha, path);
}

StateDict with_adapters(const StateDict& weights,
                        const Cursor& checkpoint,
                        const LoraChoice& choice) {
  const bool has_own = has_lora(weights);
  check_scales(choice, has_own, checkpoint.where());
  if (has_own && !choice.files.empty()) {
    throw DataError(
        "{}: has its own adapters, to which those of {} would be added\n  Make plain weights of it "
        "first (dalle2-train convert --merge-lora IN OUT) and take the result, or leave --lora "
        "out.",
        checkpoint.where(),
        choice.files.front());
  }
  const auto scale = [&](size_t i) {
    return choice.scales.empty() ? 1.0 : choice.scales[choice.scales.size() == 1 ? 0 : i];
  };
  if (has_own) {
    const double alpha = lora_info_of(checkpoint.at("lora")).alpha;
    return merged_lora(weights, alpha, checkpoint.where(), scale(0));
  }
  StateDict result = weights;
  for (size_t i = 0; i < choice.files.size(); ++i) {
    const std::string& path = choice.files[i];
    result = merged_lora(result, read_lora_file(path), path, scale(i));
  }
  return result;
}

}  // namespace dalle2
