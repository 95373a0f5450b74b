// SPDX-License-Identifier: MIT
// `tracker` of a config.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/public_url.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"
#include "config/shared/checkpoint_places_config.h"

namespace dalle2 {

/// The keys that every logger has.
void log_fields(auto& f, auto& log) {
  f.field("resume",
          log.resume,
          "Continue an earlier run of Weights & Biases; other loggers ignore it.");
  f.field(
      "auto_resume",
      log.auto_resume,
      "After a crash or a stop, the same command resumes the run in `data_path`. One of several "
      "loggers with this key is enough.");
  f.field("verbose",
          log.verbose,
          "Print every record to the console too; the console logger always does.");
}

struct ConsoleLogConfig {
  static constexpr const char* kTag = "console";
  static constexpr const char* kDoc = "Prints one line per record.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;

  void fields(auto& f) { log_fields(f, *this); }
};

/// Whether nothing asks Weights & Biases who the user is.
inline bool logs_offline() {
  const char* const mode = std::getenv("WANDB_MODE");
  const std::string_view text = mode != nullptr ? mode : "";
  return text == "offline" || text == "dryrun" || text == "disabled";
}

struct WandbLogConfig {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Logs to Weights & Biases while training or, without an API key or with "
      "`WANDB_MODE=offline`, into a folder for `wandb sync`.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
  std::optional<std::string> wandb_entity, wandb_project, wandb_run_id, wandb_run_name;

  void fields(auto& f) {
    log_fields(f, *this);
    constexpr const char* kEntity =
        "User or team that owns the project; null only with `WANDB_MODE=offline` or `disabled` in "
        "the environment.";
    const bool is_offline = logs_offline();
    if (is_offline) {
      D2_FIELD(wandb_entity, kEntity, not_empty());
    } else {
      D2_REQUIRED(wandb_entity, kEntity, not_empty());
    }
    D2_REQUIRED(wandb_project, "Project to log to; must not be null.", not_empty());
    D2_FIELD(wandb_run_id, "Run to continue; needed with `resume`.", not_empty());
    D2_FIELD(wandb_run_name, "Name of the run.", not_empty());
    f.check(is_offline || wandb_entity.has_value(),
            "wandb_entity",
            "wandb_entity must be specified for wandb logger, got null");
    f.check(wandb_project.has_value(),
            "wandb_project",
            "wandb_project must be specified for wandb logger, got null");
    f.check(!resume || wandb_run_id.has_value(),
            "wandb_run_id",
            "must be given with resume: the run to continue");
  }
};

/// Our addition: the reference knows the console and Weights & Biases.
struct TensorboardLogConfig {
  static constexpr const char* kTag = "tensorboard";
  static constexpr const char* kDoc =
      "Extension: writes TensorBoard event files with numbers, pictures and captions.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
  std::optional<std::string> log_dir;

  void fields(auto& f) {
    log_fields(f, *this);
    D2_FIELD(log_dir,
             "Folder of the event files; null for `data_path/tensorboard`. Each start adds a "
             "file.",
             not_empty());
    f.note(resume,
           "resume",
           "has no effect: each start adds a file, and TensorBoard shows them as one run");
  }
};
using LogConfig =
    std::variant<ConsoleLogConfig, WandbLogConfig, TensorboardLogConfig>;  // tag key log_type
template <>
struct TagTraits<LogConfig> {
  static constexpr const char* key = "log_type";
  static constexpr const char* noun = "logger";
  static constexpr const char* doc = "Kind of logger.";
};

struct TrackerConfig {
  static constexpr const char* kDoc =
      "Where a run keeps its files, logs to, loads from and saves to.";

  std::string data_path = ".tracker_data";
  bool overwrite_data_path = false;
  OneOrMany<LogConfig> log = LogConfig(ConsoleLogConfig{});  // required
  std::optional<LoadConfig> load;                            // load_from null: none
  std::vector<SaveConfig> save;                              // required, one or many
  int64_t keep_last = 1;
  std::optional<int64_t> keep_every;
  double upload_deadline_seconds = 600;

  void fields(auto& f) {
    D2_FIELD(data_path,
             "Folder of the run's files: `log.jsonl`, `images/`, `checkpoint.pth`, `model.pth`, "
             "`auto_resume.json`.",
             not_empty());
    D2_FIELD(
        overwrite_data_path,
        "Without `auto_resume`: rename the folder of a run that is in `data_path`, and begin a new "
        "run. If false, such a start is refused.");
    D2_REQUIRED(log,
                "Where records and pictures go; `{}` for the console.",
                any_value().not_empty("at least one logger is needed, `{}` for the console"));
    D2_FIELD(load, "The checkpoint to start from; null for none.");
    D2_REQUIRED(save,
                "Where checkpoints go.",
                any_value()
                    .not_empty("`savers` must be set: give at least one saver, got none")
                    .one_is_list());
    D2_FIELD(
        keep_last,
        "Older checkpoints that are kept in `data_path/snapshots`, besides the one with the lowest "
        "validation loss, as a fallback for resuming. A file is removed only after the new one has "
        "been read back without errors.",
        within(0, most::kEpochs));
    D2_FIELD(
        keep_every,
        "Number of samples: the first snapshot at or after each multiple of it is kept for good. "
        "Null keeps none.",
        within(1, most::kSamples));
    D2_FIELD(
        upload_deadline_seconds,
        "Seconds that the end of a run waits for uploads (after a stop signal at most 10). Files "
        "that were not sent stay in `data_path/outbox`, until the next start or `dalle2-train "
        "sync` sends them.",
        within(0, 1e6));
    check_wandb_runs(f);
    check_addresses(f);
  }

 private:
  /// What waits to be sent is known by its address as it may be shown.
  void check_addresses(auto& f) {
    std::map<std::string, std::string> shown;
    for (const SaveConfig& saver : save) {
      const auto* const url = std::get_if<UrlSaveConfig>(&saver);
      if (url == nullptr) continue;
      f.check(
          shown.emplace(without_slash(public_url(url->url)), url->url).first->second == url->url,
          "save",
          "two savers differ only in the login or query of their url, which is not shown or "
          "stored: give both targets to one of them, or put a part of the path from one url into "
          "its targets");
    }
  }
  /// A W&B loader or saver without a run of its own means the logger's.
  void check_wandb_runs(auto& f) {
    constexpr const char* kNoRun =
        "wandb_run_path must be given (entity/project/run_id), for there is no W&B logger whose "
        "run "
        "could be meant";
    const auto& loggers = log.values();
    const bool has_logger =
        std::any_of(loggers.begin(), loggers.end(), [](const LogConfig& logger) {
          return std::holds_alternative<WandbLogConfig>(logger);
        });
    const auto needs_logger = [](const auto* config) { return config && !config->wandb_run_path; };
    const bool loads = load && needs_logger(std::get_if<WandbLoadConfig>(&*load));
    f.check(has_logger || !loads, "load", kNoRun);
    for (const SaveConfig& saver : save) {
      f.check(has_logger || !needs_logger(std::get_if<WandbSaveConfig>(&saver)), "save", kNoRun);
    }
  }
};

/// What the file of every kind of run has beside the sections of its kind.
struct RootConfig {
  TrackerConfig tracker;
  int64_t seed = 0;

  void fields(auto& f, const char* seed_doc = "Seed of everything random.") {
    D2_REQUIRED(tracker, "Logs and checkpoints.");
    D2_FIELD(seed, seed_doc, at_least(0));
  }
};

}  // namespace dalle2
