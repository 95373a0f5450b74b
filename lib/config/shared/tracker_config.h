// SPDX-License-Identifier: MIT
// `tracker` of a config: loggers, loaders and savers.
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
#include "config/shared/text_rules.h"

namespace dalle2 {

/// The key that every loader has.
struct LoadOptions {
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_FIELD(only_auto_resume,
             "Load the file only when the run resumes; the first start needs no file.");
  }
};

struct LocalLoadConfig : LoadOptions {
  static constexpr const char* kTag = "local";
  static constexpr const char* kDoc = "Loads a checkpoint from a file.";

  std::string file_path;  // required

  void fields(auto& f) {
    D2_REQUIRED(file_path, "The checkpoint, relative to the working directory.", not_empty());
    LoadOptions::fields(f);
  }
};

/// What plain http is allowed for, in the sections that send or load something.
void plain_http_field(auto& f, bool& allow_plain_http) {
  f.field(
      "allow_plain_http",
      allow_plain_http,
      "Allow `http:` to other machines. Anybody on the way can then read and change the traffic, "
      "including logins.");
}

struct UrlLoadConfig : LoadOptions {
  static constexpr const char* kTag = "url";
  static constexpr const char* kDoc =
      "Downloads a checkpoint to `data_path/loaded_checkpoint.pth` before training.";

  std::string url;  // required
  std::optional<std::string> sha256;
  bool allow_plain_http = false;

  void fields(auto& f) {
    D2_REQUIRED(url,
                "URL of the checkpoint: `https:`, `http:`, `file:`, `s3://BUCKET/KEY` or "
                "`hf://OWNER/NAME/FILE` (with a revision: `hf://OWNER/NAME@REVISION/FILE`).",
                text_without(checkpoint_url_fault));
    D2_FIELD(sha256,
             "SHA-256 of the file, 64 hexadecimal digits; null accepts any file.",
             text_without(sha256_fault));
    plain_http_field(f, allow_plain_http);
    LoadOptions::fields(f);
  }
};

/// A repository of the Hugging Face hub and who asks for it.
void hub_fields(auto& f, auto& hub) {
  f.required("huggingface_repo",
             hub.huggingface_repo,
             "Repository of models, `owner/name`.",
             text_without(hub_repo_fault));
  f.field("token_path",
          hub.token_path,
          "File with an access token. Null for `HF_TOKEN`, or the file of `hf auth login` "
          "(`HF_TOKEN_PATH`, `$HF_HOME/token`).",
          text_without(token_path_fault));
  f.field("revision", hub.revision, "Branch; for loading, also a tag or a commit.", not_empty());
  plain_http_field(f, hub.allow_plain_http);
}

/// Our addition: the reference saves to the hub but does not load from it.
struct HuggingfaceLoadConfig : LoadOptions {
  static constexpr const char* kTag = "huggingface";
  static constexpr const char* kDoc =
      "Extension: downloads a checkpoint from the Hugging Face hub (or `HF_ENDPOINT`).";

  std::string huggingface_repo;       // required
  std::string huggingface_file_path;  // required
  std::optional<std::string> token_path;
  std::string revision = "main";
  bool allow_plain_http = false;

  void fields(auto& f) {
    hub_fields(f, *this);
    D2_REQUIRED(huggingface_file_path, "Path of the file in the repository.", not_empty());
    LoadOptions::fields(f);
  }
};

struct WandbLoadConfig : LoadOptions {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Downloads a file of a Weights & Biases run. The API key comes from `WANDB_API_KEY` or "
      "`~/.netrc`.";

  std::string wandb_file_path;  // required
  std::optional<std::string> wandb_run_path;

  void fields(auto& f) {
    D2_REQUIRED(wandb_file_path, "Path of the file in the run.", not_empty());
    D2_FIELD(wandb_run_path,
             "`entity/project/run_id`; null for the run that the W&B logger continues.",
             not_empty());
    LoadOptions::fields(f);
  }
};
using LoadConfig = std::variant<LocalLoadConfig,
                                UrlLoadConfig,
                                HuggingfaceLoadConfig,
                                WandbLoadConfig>;  // tag key load_from
template <>
struct TagTraits<LoadConfig> {
  static constexpr const char* key = "load_from";
  static constexpr const char* noun = "loader";
  static constexpr const char* doc = "Kind of loader; null or absent loads nothing.";
};

D2_ENUM(SaveType, checkpoint, model, lora);

struct SaveTargets {
  std::optional<std::string> save_latest_to, save_best_to, save_meta_to;  // false and null: off
  SaveType save_type = SaveType::checkpoint;
  bool save_all = false;
  bool save_latest = true;
  bool save_best = true;

  void fields(auto& f) {
    D2_FIELD(
        save_latest_to,
        "File for the latest state. Its name may contain placeholders in the forms `{epoch}`, "
        "`{validation_losses[0]}`, `{epoch:03d}`, `{x:.3f}` and `{x:.2e}`. A decoder and a CLIP "
        "have `{epoch}`, `{sample}`, `{next_task}`, `{validation_losses}` and `{samples_seen}`; a "
        "prior `{epoch}`, `{samples_seen}` and `{best_validation_loss}`; a VAE `{epoch}`, `{step}` "
        "and `{samples_seen}`.",
        path_or_off().placeholders());
    D2_FIELD(save_best_to,
             "Like `save_latest_to`, for the state with the lowest validation loss.",
             path_or_off().placeholders());
    D2_FIELD(save_meta_to, "Folder for a copy of the config.", path_or_off(folder_fault));
    D2_FIELD(
        save_type,
        "`checkpoint` holds all that resuming needs, `model` only the averaged weights (or the "
        "live ones, without an average), `lora` the averaged adapters of `train.lora`.");
    D2_FIELD(save_all, "No effect, as in the reference.");
    D2_FIELD(save_latest,
             "No effect, as in the reference. To save no latest state, leave out "
             "`save_latest_to`.");
    D2_FIELD(save_best,
             "No effect, as in the reference. To save no best state, leave out `save_best_to`.");
    f.check(save_latest_to || save_best_to || save_meta_to,
            "",
            "At least one saving option must be specified: save_latest_to, save_best_to or "
            "save_meta_to");
    f.note(save_all, "save_all", "has no effect, as in the reference");
    f.note(!save_latest && save_latest_to,
           "save_latest",
           "has no effect, as in the reference: set save_latest_to to null instead");
    f.note(!save_best && save_best_to,
           "save_best",
           "has no effect, as in the reference: set save_best_to to null instead");
  }
};

struct LocalSaveConfig : SaveTargets {
  static constexpr const char* kTag = "local";
  static constexpr const char* kDoc =
      "Saves to files, relative to the working directory. Folders are created.";
};

struct WandbSaveConfig : SaveTargets {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Saves to the files of a Weights & Biases run. The API key comes from `WANDB_API_KEY` or "
      "`~/.netrc`.";

  std::optional<std::string> wandb_run_path;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_FIELD(wandb_run_path,
             "`entity/project/run_id`; null for the run that the W&B logger logs to.",
             not_empty());
  }
};

struct HuggingfaceSaveConfig : SaveTargets {
  static constexpr const char* kTag = "huggingface";
  static constexpr const char* kDoc =
      "Saves to a repository of the Hugging Face hub (or `HF_ENDPOINT`), which is created if "
      "absent.";

  std::string huggingface_repo;  // required
  std::optional<std::string> token_path;
  std::string revision = "main";
  bool is_private = true;
  bool model_card = true;
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    hub_fields(f, *this);
    f.field("private", is_private, "Make a new repository private.");
    D2_FIELD(model_card, "Write a `README.md` with the config into a repository that has none.");
  }
};

/// Our addition.
struct UrlSaveConfig : SaveTargets {
  static constexpr const char* kTag = "url";
  static constexpr const char* kDoc =
      "Extension: saves by HTTP PUT, to WebDAV and other servers that take files, or to presigned "
      "URLs.";

  std::string url;  // required
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_REQUIRED(
        url,
        "URL of the folder to which the targets are relative; a login goes into `~/.netrc` or the "
        "URL. A query is put behind each target: of a presigned URL, give the folder with the "
        "query here, and the file name as the target.",
        text_without(http_url_fault));
    plain_http_field(f, allow_plain_http);
  }
};

/// Our addition.
struct S3SaveConfig : SaveTargets {
  static constexpr const char* kTag = "s3";
  static constexpr const char* kDoc =
      "Extension: saves to a bucket of S3 or a compatible store. Credentials, region and endpoint "
      "come from the environment and the files of the AWS tools.";

  std::string url;  // required
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_REQUIRED(url,
                "URL of the folder to which the targets are relative: `s3://BUCKET/FOLDER`.",
                text_without(s3_url_fault));
    plain_http_field(f, allow_plain_http);
  }
};
using SaveConfig = std::variant<LocalSaveConfig,
                                WandbSaveConfig,
                                HuggingfaceSaveConfig,
                                UrlSaveConfig,
                                S3SaveConfig>;  // tag key save_to
template <>
struct TagTraits<SaveConfig> {
  static constexpr const char* key = "save_to";
  static constexpr const char* noun = "saver";
  static constexpr const char* doc = "Kind of saver.";
};

/// The keys that every logger has.
struct LogOptions {
  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;

  void fields(auto& f) {
    D2_FIELD(resume, "Continue an earlier run of Weights & Biases; other loggers ignore it.");
    D2_FIELD(
        auto_resume,
        "After a crash or a stop, the same command resumes the run in `data_path`. One of several "
        "loggers with this key is enough.");
    D2_FIELD(verbose, "Print every record to the console too; the console logger always does.");
  }
};

struct ConsoleLogConfig : LogOptions {
  static constexpr const char* kTag = "console";
  static constexpr const char* kDoc = "Prints one line per record.";
};

/// Whether nothing asks Weights & Biases who the user is.
inline bool logs_offline() {
  const char* const mode = std::getenv("WANDB_MODE");
  const std::string_view text = mode != nullptr ? mode : "";
  return text == "offline" || text == "dryrun" || text == "disabled";
}

struct WandbLogConfig : LogOptions {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Logs to Weights & Biases while training or, without an API key or with "
      "`WANDB_MODE=offline`, into a folder for `wandb sync`.";

  std::optional<std::string> wandb_entity, wandb_project, wandb_run_id, wandb_run_name;

  void fields(auto& f) {
    LogOptions::fields(f);
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
struct TensorboardLogConfig : LogOptions {
  static constexpr const char* kTag = "tensorboard";
  static constexpr const char* kDoc =
      "Extension: writes TensorBoard event files with numbers, pictures and captions.";

  std::optional<std::string> log_dir;

  void fields(auto& f) {
    LogOptions::fields(f);
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
    D2_REQUIRED(log, "Where records and pictures go; `{}` for the console.", not_empty());
    D2_FIELD(load, "The checkpoint to start from; null for none.");
    D2_REQUIRED(save, "Where checkpoints go.", not_empty().one_is_list());
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
    const bool has_logger = std::ranges::any_of(loggers, [](const LogConfig& logger) {
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
