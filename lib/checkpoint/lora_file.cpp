// SPDX-License-Identifier: MIT
#include "checkpoint/lora_file.h"

#include "base/error.h"
#include "base/untrusted_json.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora_naming.h"
#include "checkpoint/safetensors.h"

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
                     {"lora_adapter_metadata", adapter_metadata(file)}});
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
  for (auto& [name, tensor] : tensors) name = numbered_unet(name);
  tensors = unet_naming_of_lora(tensors);
  if (!has_lora(tensors)) {
    throw DataError(
        "{}: no adapters: expected names like unets.0.mid_attn.fn.fn.to_q.lora.down.weight\n"
        "  `dalle2-train inspect {}` lists what it holds.",
        path,
        path);
  }
  return lora_adapters(tensors, alpha, path);
}

}  // namespace dalle2
