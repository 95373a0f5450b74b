// SPDX-License-Identifier: MIT
// `convert`: other formats and versions of a file, merged adapters, and stages of one cascade that were
// trained in separate runs (/train/unet_training_mask), in one file.
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/public_url.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/value_json.h"
#include "config/resume_changes.h"
#include "run/checkpoints/clip_weights.h"
#include "run/commands.h"
#include "run/decoder/decoder_data.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

/// How a decoder draws, which does not matter to a resume, but decides the bits of what is drawn.
constexpr std::array<std::string_view, 5> kDrawingKeys = {"/decoder/sample_timesteps",
                                                          "/decoder/ddim_sampling_eta",
                                                          "/decoder/use_dynamic_thres",
                                                          "/decoder/dynamic_thres_percentile",
                                                          "/decoder/lowres_noise_sample_level"};

struct Source {
  std::string path;
  Value root;
  StateDict weights;
  std::string config;                     ///< JSON; empty without
  std::optional<std::vector<bool>> mask;  ///< /train/unet_training_mask of its config

  Cursor cursor() const { return Cursor(root, path); }
  bool holds(size_t stage) const {
    const std::string prefix = fmt::format("unets.{}.", stage);
    return std::ranges::any_of(weights,
                               [&](const auto& entry) { return entry.first.starts_with(prefix); });
  }
  bool trained(size_t stage) const {
    if (!holds(stage)) return false;
    if (const auto optimizer = cursor().find(fmt::format("optim{}", stage))) {
      return !optimizer->is_none();
    }
    return !mask || stage >= mask->size() || mask->at(stage);
  }
};

LoadedDecoderConfig parsed(const std::string& json, const std::string& where) {
  return parse_decoder_config(
      json,
      where,
      {.overrides = {}, .strict = false, .check_available = false, .part = ConfigPart::stored});
}

Source read_source(const std::string& path, bool averaged) {
  Source source{
      .path = path, .root = read_checkpoint(path), .weights = {}, .config = {}, .mask = {}};
  const Cursor root = source.cursor();
  check_kind(root, "decoder");
  if (has_lora(root)) {
    throw DataError(
        "{}: holds adapters, which are not a stage by themselves\n  Make plain weights of it "
        "first: dalle2-train convert --merge-lora IN OUT",
        path);
  }
  source.weights = model_weights(root, "decoder", /*use_ema=*/averaged);
  const std::optional<Cursor> config = root.find("config");
  if (config && config->value().is_dict()) {
    source.config = stored_config(root);
    source.mask = parsed(source.config, config->where()).config.train.unet_training_mask;
  }
  return source;
}

bool hold_the_same(const Source& a, const Source& b, size_t stage) {
  const std::string prefix = fmt::format("unets.{}.", stage);
  const StateDict ours = strip_prefix(a.weights, prefix), theirs = strip_prefix(b.weights, prefix);
  return ours.size() == theirs.size() && std::ranges::all_of(ours, [&](const auto& entry) {
           const at::Tensor* other = find_tensor(theirs, entry.first);
           return other != nullptr && entry.second.dtype() == other->dtype() &&
                  at::equal(entry.second, *other);
         });
}

/// The file that gives a stage; null if none holds it.
const Source* giver_of(size_t stage, const std::vector<Source>& sources) {
  const Source *trained = nullptr, *held = nullptr;
  for (const Source& source : sources) {
    if (source.trained(stage)) {
      if (trained != nullptr) {
        throw ConfigError(
            "unet {}: {} and {} both trained it\n  Leave one of the files out: the weights of a "
            "unet come from one file.",
            stage + 1,
            trained->path,
            source.path);
      }
      trained = &source;
    } else if (source.holds(stage)) {
      if (held != nullptr && !hold_the_same(*held, source, stage)) {
        throw ConfigError(
            "unet {}: {} and {} hold different weights of it, and neither trained it\n  Add the "
            "file that did, or leave one of these out.",
            stage + 1,
            held->path,
            source.path);
      }
      held = &source;
    }
  }
  return trained != nullptr ? trained : held;
}

/// @param drawing whether the decoders have to draw in the same way too
void check_same_decoder(const Source& source,
                        const std::string& config,
                        const std::string& origin,
                        bool drawing) {
  if (source.config.empty() || source.path == origin) return;
  const ConfigChanges changes = compare_for_resume(source.config, config, {source.path, origin});
  std::vector<std::string> faults;
  for (const std::string& change : changes.meaning) {
    if (change.starts_with("/decoder")) faults.push_back(change);
  }
  if (!faults.empty()) {
    throw ConfigError("{} and {} are not stages of one cascade:\n  {}",
                      source.path,
                      origin,
                      fmt::join(faults, "\n  "));
  }
  if (!drawing) return;
  for (const std::string& change : changes.other) {
    const auto begins_change = [&](std::string_view key) { return change.starts_with(key); };
    if (std::ranges::any_of(kDrawingKeys, begins_change)) faults.push_back(change);
  }
  if (faults.empty()) return;
  throw ConfigError(
      "{} and {} draw in different ways:\n  {}\n  Say which one to use: --config F.json, a "
      "training file whose /decoder the result gets.",
      source.path,
      origin,
      fmt::join(faults, "\n  "));
}

/// Of whose stages a file is made.
using Givers = std::vector<const Source*>;

/// A group of names, such as "unets.1." of "unets.1.init_conv.bias": where it begins, and the stage.
std::optional<size_t> stage_of(const std::string& name, std::string_view section) {
  if (!name.starts_with(section)) return std::nullopt;
  size_t stage = 0, i = section.size();
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9' && i < section.size() + 6; ++i) {
    stage = stage * 10 + static_cast<size_t>(name[i] - '0');
  }
  if (i == section.size() || i == name.size() || name[i] != '.') return std::nullopt;
  return stage;
}

/// Each stage's entries of every section (unets, noise_schedulers, lowres_conds) are its giver's.
StateDict joined_weights(const Givers& givers, const Source& first) {
  StateDict result;
  std::vector<std::string> sections;
  for (const auto& [name, tensor] : first.weights) {
    const std::string section = name.substr(0, name.find('.') + 1);
    if (!stage_of(name, section)) {
      result.emplace_back(name, tensor);
    } else if (std::ranges::find(sections, section) == sections.end()) {
      sections.push_back(section);
    }
  }
  for (const std::string& section : sections) {
    for (size_t stage = 0; stage < givers.size(); ++stage) {
      const Source& giver = givers[stage] != nullptr ? *givers[stage] : first;
      for (const auto& [name, tensor] : giver.weights) {
        if (stage_of(name, section) == stage) result.emplace_back(name, tensor);
      }
    }
  }
  return result;
}

/// The entry `key` of the stage's giver; none where it has none.
std::optional<Cursor> entry_of(const Source* giver, const std::string& key) {
  if (giver == nullptr) return std::nullopt;
  return giver->cursor().find(key);
}

/// ema-pytorch's averages: one dict, "0.ema_model.init_conv.bias".
std::optional<Value> joined_ema(const Givers& givers) {
  Dict result{.items = {}, .ordered = true};
  bool any = false;
  for (size_t stage = 0; stage < givers.size(); ++stage) {
    const auto ema = entry_of(givers[stage], "ema");
    if (!ema) continue;
    any = true;
    for (const auto& [key, value] : ema->as_dict().items) {
      if (key.is_string() && stage_of(key.as_string(), "") == stage) {
        result.items.emplace_back(key, value);
      }
    }
  }
  return any ? std::optional<Value>(std::move(result)) : std::nullopt;
}

/// A list with an entry a stage, None for one without.
std::optional<Value> joined_list(const Givers& givers, const std::string& key) {
  List result;
  bool any = false;
  for (size_t stage = 0; stage < givers.size(); ++stage) {
    const auto list = entry_of(givers[stage], key);
    const bool has = list && stage < list->size() && !list->at(stage).is_none();
    any = any || has;
    result.items.push_back(has ? list->at(stage).value() : Value());
  }
  return any ? std::optional<Value>(std::move(result)) : std::nullopt;
}

void set_averages(Dict& result, const Givers& givers) {
  const std::optional<Value> ema = joined_ema(givers);
  const std::optional<Value> diffusers = joined_list(givers, "ema_diffusers");
  if (ema && diffusers) {
    throw ConfigError(
        "the files hold averages of different kinds (\"ema\" and \"ema_diffusers\"), which a "
        "checkpoint cannot hold together\n  Add --ema, which joins the averaged weights "
        "themselves.");
  }
  if (ema) result.set("ema", *ema);
  if (diffusers) result.set("ema_diffusers", *diffusers);
  if (const auto averages = joined_list(givers, "post_hoc_ema")) {
    result.set("post_hoc_ema", *averages);
  }
}

/// Step counts, optimizers, schedules and loss scales, if every stage that was trained has them.
void set_training_state(Dict& result, const Givers& givers) {
  std::vector<int64_t> steps;
  for (size_t stage = 0; stage < givers.size(); ++stage) {
    const Source* giver = givers[stage];
    const auto counts = entry_of(giver, "steps");
    const bool trained = giver != nullptr && giver->trained(stage);
    if (trained && (!counts || !entry_of(giver, fmt::format("optim{}", stage)))) return;
    const at::Tensor all = counts ? counts->as_tensor().flatten() : at::Tensor();
    const auto at = static_cast<int64_t>(stage);
    steps.push_back(all.defined() && at < all.numel() ? all[at].item<int64_t>() : 0);
  }
  result.set("steps", at::tensor(steps, at::kLong));
  for (const char* key : {"optim", "sched", "scaler"}) {
    for (size_t stage = 0; stage < givers.size(); ++stage) {
      const auto entry = entry_of(givers[stage], key + std::to_string(stage));
      if (entry) result.set(key + std::to_string(stage), entry->value());
      if (!entry && key != std::string_view("scaler")) result.set(key + std::to_string(stage), {});
    }
  }
}

/// The config of the result, which says that all stages are there, or which are.
Value with_mask(const std::string& config, const Givers& givers) {
  Value value = value_of_json(config);
  Dict& root = value.as_dict();
  const bool all = std::ranges::none_of(givers, [](auto* g) { return g == nullptr; });
  List mask;
  for (const Source* giver : givers) mask.items.emplace_back(giver != nullptr);
  for (auto& [key, section] : root.items) {
    if (!key.is_string() || key.as_string() != "train" || !section.is_dict()) continue;
    section.as_dict().set("unet_training_mask", all ? Value() : Value(std::move(mask)));
  }
  return value;
}

/// The file that holds the lowest stage: what conditions a cascade reads is its business.
const Source& lowest(const std::vector<Source>& sources) {
  const auto stage = [](const Source& source) {
    size_t i = 0;
    while (i < 1000 && !source.trained(i)) ++i;
    return i;
  };
  return *std::ranges::min_element(sources, {}, stage);
}

/// Joins checkpoints or model files of decoders whose stages were trained apart, and prints which file
/// gave which stage. Of each stage the file that trained it gives the weights, the average and the
/// optimizer's state, bit for bit; a stage that none of them trained comes from a file that only holds
/// it. Where the run of a stage stood is not kept. The config is that of `config_path` (a training file),
/// else that of the lowest stage's file.
/// @param averaged {version, model, config} with averaged weights alone
/// @throws ConfigError naming stage and files where two trained the same one, or hold different
/// weights of it, or differ in what the decoder is or how it draws; DataError
Value join_stages(const std::vector<std::string>& paths,
                  const std::optional<std::string>& config_path,
                  bool averaged) {
  std::vector<Source> sources;
  for (const std::string& path : paths) sources.push_back(read_source(path, averaged));
  const Source& first = lowest(sources);
  std::string config = first.config;
  if (config_path) {
    const auto loaded = load_decoder_config(
        *config_path, {.overrides = {}, .strict = false, .check_available = false});
    config = config_texts(loaded).full_json;
  }
  if (config.empty()) {
    throw ConfigError("{}: has no config\n  Give the training file of the cascade: --config F.json",
                      first.path);
  }
  const std::string origin = config_path.value_or(first.path);
  for (const Source& source : sources) check_same_decoder(source, config, origin, !config_path);

  const DecoderPlan plan = parsed(config, origin).plan;
  Givers givers;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const Source* giver = givers.emplace_back(giver_of(stage, sources));
    print_line("unet {}: {}", stage + 1, giver == nullptr ? "in none of the files" : giver->path);
  }
  Dict result;
  result.set("model", to_dict(joined_weights(givers, first)));
  result.set("version", to_text(plan.config.written_by));
  if (!averaged) {
    set_training_state(result, givers);
    set_averages(result, givers);
  }
  result.set("config", with_mask(config, givers));
  return result;
}

void check_number_of_files(const ConvertCommand& command) {
  const size_t files = command.in_paths.size();
  if (command.merge && files < 2) {
    throw ConfigError("--merge: expected at least two files and OUT, got {} and OUT", files);
  }
  if (!command.merge && files > 1) {
    throw ConfigError(
        "expected IN and OUT, got {} files\n  --merge joins checkpoints of one cascade whose unets "
        "were trained apart.",
        files + 1);
  }
}

/// What it writes has less than what it reads: the optimizer's state, the live weights, or both may be gone.
void check_other_file(const ConvertCommand& command) {
  for (const std::string& in : command.in_paths) {
    std::error_code absent;
    if (!std::filesystem::equivalent(in, command.out_path, absent)) continue;
    throw ConfigError(
        "OUT {}: is the file to convert\n  What is left out of it would be lost. Give another "
        "name, and rename the new file after you have checked it.",
        command.out_path);
  }
}

ConvertReport convert(const ConvertCommand& command) {
  const std::string &in = command.in_paths.front(), &out = command.out_path;
  if (command.open_clip) return convert_to_open_clip(in, out);
  if (command.merge) {
    is_safetensors_name(out);
    return write_checkpoint(out, join_stages(command.in_paths, command.config_path, command.ema));
  }
  if (command.config_path || !command.written_by.empty() || !command.to.empty()) {
    is_safetensors_name(out);
    return write_checkpoint(out,
                            described_checkpoint(read_checkpoint(in),
                                                 in,
                                                 {.config_path = command.config_path,
                                                  .written_by = command.written_by,
                                                  .to_last_version = !command.to.empty(),
                                                  .averaged = command.ema}));
  }
  const Weights weights = command.ema ? Weights::kAveraged : Weights::kAll;
  if (command.merge_lora || !command.lora_paths.empty()) {
    return convert_checkpoint(in, out, weights, LoraChoice{command.lora_paths, command.lora_scale});
  }
  return convert_checkpoint(in, out, weights);
}

}  // namespace

void run_convert(const ConvertCommand& command) {
  check_number_of_files(command);
  check_other_file(command);
  check_out_file("OUT", command.out_path, command.overwrite);
  ConvertCommand local = command;
  std::vector<std::unique_ptr<FetchedFile>> files;
  for (std::string& path : local.in_paths) {
    files.push_back(std::make_unique<FetchedFile>(path));
    path = files.back()->path();
  }
  const ConvertReport report = convert(local);
  for (const std::string& path : report.replaced) {
    log_warning("ckpt", "{}: an object of an unknown class, kept as text", path);
  }
  print_line("{} -> {}, {} tensors",
             public_text(fmt::format("{}", fmt::join(command.in_paths, " + "))),
             command.out_path,
             report.tensor_count);
}

}  // namespace dalle2
