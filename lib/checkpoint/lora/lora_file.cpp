// SPDX-License-Identifier: MIT
#include "checkpoint/lora/lora_file.h"

#include "base/error.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/convert.h"

#include <set>

namespace dalle2 {
namespace {

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
