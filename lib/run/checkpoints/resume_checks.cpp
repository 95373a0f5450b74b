// SPDX-License-Identifier: MIT
#include "run/checkpoints/resume_checks.h"

#include <fmt/ranges.h>
#include <torch/types.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "run/checkpoints/model_weights.h"

namespace dalle2 {

HeldStages held_stages(const Cursor& root,
                       const std::function<bool(const std::string&)>& is_trained,
                       const std::function<bool(const std::string&)>& is_untrained) {
  HeldStages held;
  const Cursor model = root.value().is_dict() && root.has("model") ? root.at("model") : root;
  if (!model.value().is_dict()) return held;
  for (const auto& [key, value] : model.as_dict().items) {
    if (!key.is_string()) continue;
    held.trained = held.trained || is_trained(key.as_string());
    held.untrained = held.untrained || is_untrained(key.as_string());
  }
  return held;
}

void check_readable(const std::vector<std::string>& checkpoints) {
  for (const std::string& path : checkpoints) {
    if (::access(path.c_str(), R_OK) == 0 || errno != EACCES) continue;
    throw ConfigError(
        "{}: cannot be opened: {}\n  Make it readable for this user, or move it away to resume from "
        "an older state.",
        path,
        errno_text(EACCES));
  }
}

std::optional<std::string> take_first(const StartPlan& plan,
                                      const std::string& data_path,
                                      const std::function<void(const std::string& path)>& take) {
  for (size_t i = 0; i < plan.files.size(); ++i) {
    try {
      take(plan.files[i]);
      return plan.files[i];
    } catch (const DataError& error) {
      const std::string fault = error.what();
      if (i + 1 < plan.files.size()) {  // what to do about it is for those who have no other
        log_warning("ckpt",
                    "{}\n  Falling back to {}",
                    fault.substr(0, fault.find('\n')),
                    plan.files[i + 1]);
      } else if (!plan.resumes()) {
        throw;  // the file of /tracker/load has a fault, and no other takes its place
      } else {
        throw DataError("{}\n  {}", fault, nothing_intact(data_path, plan.elsewhere));
      }
    }
  }
  return std::nullopt;
}

static void compare_data_size(const Cursor& root, const DataSize& now, ConfigChanges& changes) {
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!own || !own->has("data_size") || now.count == 0) return;
  const int64_t saved = own->at("data_size").as_int(), count = now.count;
  if (saved == count) {
    if (now.names.empty() || !own->has("data_names")) return;
    if (own->at("data_names").as_string() == now.names) return;
    changes.meaning.push_back(fmt::format(
        "/data: the names of the {} have changed since the checkpoint was made: the splits are "
        "made again, and what was kept for validation may be trained on",
        counted(count, now.unit)));
    return;
  }
  changes.meaning.push_back(fmt::format(
      "/data: the checkpoint has a data set of {}, now there are {}: the splits are made again, "
      "and what was kept for validation may be trained on",
      counted(saved, now.unit),
      counted(count, now.unit)));
}

/// Whether a checkpoint was made while its epoch was trained on.
static bool is_amid_epoch(const Cursor& root) {
  const std::optional<Cursor> own = root.find(kOwnState);
  if (const auto place = own ? own->find("loader_position") : std::nullopt)
    return place->at("row").as_int() > 0;
  const std::optional<Cursor> sample = root.find("sample"), task = root.find("next_task");
  return sample && sample->as_int() > 0 && (!task || task->as_string() == "train");
}

ConfigChanges compare_config(const Cursor& root,
                             const ConfigTexts& texts,
                             const DataSize& data_size,
                             bool allow_changed_config) {
  ConfigChanges changes = changes_since(root, texts.full_json);
  compare_data_size(root, data_size, changes);
  if (!changes.other.empty()) {
    log_info("ckpt",
             "{}: the config has changed since: {}",
             root.where(),
             fmt::join(changes.other, "; "));
  }
  if (!is_amid_epoch(root)) changes.order.clear();
  std::vector<std::string> told = changes.meaning;
  for (const std::string& line : changes.order) {
    told.push_back(
        line + ": it was saved within an epoch, and this would change the order of its samples");
  }
  if (told.empty()) return changes;
  const std::string list = fmt::format("{}", fmt::join(told, "\n  "));
  if (!allow_changed_config) {
    throw ConfigError(
        "{}: the config gives this checkpoint's weights or data another meaning:\n  {}\n  Use the "
        "values it was made with, begin a new run in another /tracker/data_path (and with other targets in /tracker/save), or "
        "set /train/allow_changed_config to true if that is what you want and the weights still fit.",
        root.where(),
        list);
  }
  log_warning("ckpt",
              "{}: continuing although the config gives it another meaning "
              "(/train/allow_changed_config):\n  {}",
              root.where(),
              list);
  return changes;
}

void warn_of_other_splits(const Cursor& root, const ConfigTexts& texts, const DataSize& data_size) {
  ConfigChanges changes = changes_since(root, texts.full_json);
  std::erase_if(changes.meaning, [](const std::string& line) {
    return !line.starts_with("/data") && !line.starts_with("/seed");
  });
  compare_data_size(root, data_size, changes);
  if (changes.meaning.empty()) return;
  log_warning(
      "eval",
      "{}: expected the splits of the run that saved it, but the figures may be of samples that it "
      "was trained on:\n  {}",
      root.where(),
      fmt::join(changes.meaning, "\n  "));
}

void check_same_model(const Cursor& root, const ConfigTexts& texts, bool allow_changed_config) {
  if (allow_changed_config) return;
  const std::vector<std::string> changes = model_changes(root, texts.kind, texts.full_json);
  if (changes.empty()) return;
  throw ConfigError(
      "{}: this run would build on its weights, but it is of another {}:\n  {}\n  Use the values "
      "it was made with, or another file in /tracker/load, or set /train/allow_changed_config to "
      "true if that is what you want.",
      root.where(),
      texts.kind,
      fmt::join(changes, "\n  "));
}

void throw_no_base(const std::string& model_name) {
  throw ConfigError(
      "/train/lora: adapters need the weights of a trained {0}, and no checkpoint was loaded: "
      "without one they would be trained on random weights that stay as they are\n  Name the {0}'s "
      "checkpoint in /tracker/load (load_from \"local\", file_path), or set /train/lora/rank to 0 "
      "to train the whole network.",
      model_name);
}

void warn_if_nothing_is_left(const RunPosition& position, int64_t epochs, const std::string& path) {
  if (position.epochs_trained() <= epochs) return;
  log_warning("ckpt",
              "{} has been trained for {} and /train/epochs is {}: nothing is left to train. Give "
              "more epochs to train on.",
              path,
              counted(position.epochs_trained(), "epoch"),
              epochs);
}

}  // namespace dalle2
