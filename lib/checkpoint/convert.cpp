// SPDX-License-Identifier: MIT
#include "checkpoint/convert.h"

#include "base/error.h"
#include "base/little_endian.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/mapped_file.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/pickle/pickle.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/folder_names.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <unordered_map>

namespace dalle2 {
namespace {

const std::string kTreeKey = "dalle2.checkpoint";

bool is_state_dict(const Value& value) {
  return value.is_dict() && std::ranges::all_of(value.as_dict().items, [](const auto& item) {
           return item.first.is_string() && item.second.is_tensor();
         });
}

/// What precedes the names of a part in the model of a checkpoint: of a decoder's unet, of a VAE's
/// autoencoder and discriminator. @param part its number, as in the entry "ema"
std::string prefix_of_part(const Cursor& checkpoint, const std::string& part) {
  bool is_vae = false;
  if (const auto model = checkpoint.find("model"); model && model->value().is_dict()) {
    const auto& items = model->value().as_dict().items;
    is_vae = !items.empty() && items.front().first.is_string() &&
             items.front().first.as_string().starts_with("enc_dec.");
  }
  if (!is_vae) return "unets." + part + ".";
  return part == "0" ? "" : "discr.";
}

/// "0.ema_model.init_conv.bias" -> ("unets.0.init_conv.bias"); empty for other names.
std::string name_in_model(const Cursor& checkpoint, const std::string& ema_name) {
  const size_t dot = ema_name.find('.');
  const bool numbered = dot != std::string::npos && dot > 0 &&
                        ema_name.find_first_not_of("0123456789") == dot &&
                        ema_name.compare(dot + 1, kEmaModel.size(), kEmaModel) == 0;
  return numbered ? prefix_of_part(checkpoint, ema_name.substr(0, dot)) +
                        ema_name.substr(dot + 1 + kEmaModel.size())
                  : "";
}

using Averages = std::unordered_map<std::string, at::Tensor>;  ///< by their names in the model

/// Of ema-pytorch's kind.
Averages averages_of_ema(const Cursor& checkpoint, const Cursor& ema) {
  Averages averages;
  for (const auto& [name, tensor] : ema.as_state_dict()) {
    if (const std::string target = name_in_model(checkpoint, name); !target.empty()) {
      averages[target] = tensor;
    }
  }
  return averages;
}

void add_shadows(const Cursor& average, const std::string& prefix, Averages& averages) {
  const Cursor names = average.at("parameter_names");
  const Cursor shadows = average.at("shadow_params");
  for (size_t i = 0; i < names.size(); ++i) {
    averages[prefix + names.at(i).as_string()] = shadows.at(i).as_tensor();
  }
}

/// Of diffusers' kind: a list, one entry a unet, or the entry of a prior's network.
Averages averages_of_ema_diffusers(const Cursor& checkpoint, const Cursor& ema) {
  Averages averages;
  if (ema.value().is_dict()) {
    add_shadows(ema, "net.", averages);
    return averages;
  }
  for (size_t part = 0; part < ema.size(); ++part) {
    if (ema.at(part).is_none()) continue;
    add_shadows(ema.at(part), prefix_of_part(checkpoint, std::to_string(part)), averages);
  }
  return averages;
}

StateDict model_with_averages(const Cursor& checkpoint,
                              const Cursor& ema,
                              const Averages& averages) {
  StateDict weights = checkpoint.at("model").as_state_dict();
  size_t used = 0;
  for (auto& [name, tensor] : weights) {
    if (const auto average = averages.find(name); average != averages.end()) {
      tensor = average->second;
      ++used;
    }
  }
  if (used == 0 || used != averages.size()) {
    throw DataError("{}: expected the averages of the model, got {} entries of which {} fit",
                    ema.where(),
                    averages.size(),
                    used);
  }
  return weights;
}

Value merged_checkpoint(const Cursor& checkpoint, const LoraChoice& lora) {
  const bool bare = !checkpoint.has("model");
  const Cursor place = bare ? checkpoint : checkpoint.at("model");
  const StateDict weights = place.as_state_dict();
  const bool has_own = has_lora(weights);
  if (lora.files.empty() && (!has_own || bare)) {
    throw DataError("{}: {}: expected a checkpoint of a run with /train/lora",
                    place.where(),
                    has_own ? "adapters, but not their alpha" : "no adapters");
  }
  const StateDict plain = with_adapters(weights, checkpoint, lora);
  if (bare) return to_dict(plain);
  return with_entries(plain, checkpoint, {"version", "config"});
}

/// Objects that are not plain data become text, versions their number.
void replace_stubs(Value& value, const std::string& path, std::vector<std::string>& replaced) {
  if (value.is_stub()) {
    const auto version = version_text(value);
    if (!version) replaced.push_back(path + ": " + value.type_name());
    value = version ? *version : describe(value);
  } else if (value.is_dict()) {
    for (auto& [key, child] : value.as_dict().items) {
      replace_stubs(child, path + "/" + describe(key), replaced);
    }
  } else if (value.is_list() || value.is_tuple()) {
    auto& items =
        value.is_list() ? std::get<List>(value.data).items : std::get<Tuple>(value.data).items;
    for (size_t i = 0; i < items.size(); ++i) {
      replace_stubs(items[i], path + "/" + std::to_string(i), replaced);
    }
  }
}

size_t write_as_safetensors(const std::string& path, const Value& root) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (is_state_dict(root)) {
    const StateDict tensors = Cursor(root).as_state_dict();
    write_safetensors(path, tensors, metadata);
    return tensors.size();
  }
  const ValueTree tree = take_apart(root);
  metadata[kTreeKey] = tree.json;
  write_safetensors(path, tree.tensors, metadata);
  return tree.tensors.size();
}

}  // namespace

Dict with_entries(const StateDict& model,
                  const Cursor& checkpoint,
                  const std::vector<const char*>& keys) {
  Dict result;
  result.set("model", to_dict(model));
  std::vector<const char*> kept = keys;
  kept.insert(kept.end(), std::begin(kCompanionKeys), std::end(kCompanionKeys));
  for (const char* key : kept) {
    if (const auto entry = checkpoint.find(key)) result.set(key, entry->value());
  }
  return result;
}

bool is_safetensors_name(const std::string& out) {
  const bool to_safetensors = out.ends_with(".safetensors");
  if (!to_safetensors && !out.ends_with(".pth") && !out.ends_with(".pt")) {
    throw ConfigError("{}: expected a name that ends in .pth, .pt or .safetensors", out);
  }
  return to_safetensors;
}

ConvertReport write_checkpoint(const std::string& out, Value root) {
  ConvertReport report;
  replace_stubs(root, "", report.replaced);
  if (is_safetensors_name(out)) {
    report.tensor_count = write_as_safetensors(out, root);
  } else {
    report.tensor_count = take_apart(root).tensors.size();
    write_pth(out, root);
  }
  return report;
}

bool has_averages(const Cursor& checkpoint) {
  return checkpoint.has("ema") || checkpoint.has("ema_diffusers") || checkpoint.has("ema_model") ||
         (is_state_dict(checkpoint.value()) &&
          !strip_prefix(checkpoint.as_state_dict(), kEmaModel).empty());
}

// A header length that fits the file, then JSON.
bool looks_like_safetensors(const std::string& path) {
  const MappedFile file(path);
  if (file.size() < 10) return false;
  const uint64_t length = from_little_endian(file.bytes(0, 8));
  const uint8_t first = file.data()[8];
  return length <= file.size() - 8 && (first == '{' || first == ' ' || first == '\n');
}

/// @throws DataError for the folder of a run, naming the file that is meant
static void refuse_folder(const std::string& path) {
  if (!is_folder(path)) return;
  for (const char* name : {"model.pth", "checkpoint.pth"}) {
    const std::filesystem::path file = std::filesystem::path(path) / name;
    if (!path_exists(file)) continue;
    throw DataError("{}: expected a file, got the folder of a run\n  Did you mean {}?",
                    printable(path),
                    file.string());
  }
  throw DataError("{}: expected a file, got a folder without model.pth or checkpoint.pth",
                  printable(path));
}

Value read_checkpoint(const std::string& path) {
  refuse_folder(path);
  if (!looks_like_safetensors(path)) return read_pth(path);
  SafetensorsFile file = read_safetensors(path);
  if (const auto tree = file.metadata.find(kTreeKey); tree != file.metadata.end()) {
    return put_together({tree->second, std::move(file.tensors)}, path);
  }
  return to_dict(file.tensors);
}

Value read_checkpoint_outline(const std::string& path) {
  refuse_folder(path);
  return looks_like_safetensors(path) ? read_checkpoint(path) : read_pth_outline(path);
}

StateDict averaged_weights(const Cursor& checkpoint) {
  if (const auto averaged = checkpoint.find("ema_model")) {
    StateDict averages = averaged->as_state_dict();  // of a prior
    if (!has_lora(averages) || !checkpoint.has("model")) return averages;
    // With adapters they are only what is trained: the rest is that of the model.
    return model_with_averages(checkpoint, *averaged, {averages.begin(), averages.end()});
  }
  if (const auto ema = checkpoint.find("ema")) {
    return model_with_averages(checkpoint, *ema, averages_of_ema(checkpoint, *ema));
  }
  if (const auto ema = checkpoint.find("ema_diffusers")) {
    return model_with_averages(checkpoint, *ema, averages_of_ema_diffusers(checkpoint, *ema));
  }
  if (is_state_dict(checkpoint.value())) {
    StateDict weights = strip_prefix(checkpoint.as_state_dict(), kEmaModel);
    if (!weights.empty()) return weights;
  }
  throw DataError(
      "{}: no averaged weights: expected an entry 'ema', 'ema_diffusers' or 'ema_model'. The run "
      "that wrote it had use_ema off, or it is a model file, whose weights are already the "
      "averages",
      checkpoint.where());
}

ConvertReport convert_checkpoint(const std::string& in,
                                 const std::string& out,
                                 Weights weights,
                                 const std::optional<LoraChoice>& merge) {
  is_safetensors_name(out);
  Value root = read_checkpoint(in);
  if (weights == Weights::kAveraged) {
    const Cursor checkpoint(root, in);
    root = with_entries(averaged_weights(checkpoint), checkpoint, {"version", "lora", "config"});
  }
  if (merge) root = merged_checkpoint(Cursor(root, in), *merge);
  return write_checkpoint(out, std::move(root));
}

}  // namespace dalle2
