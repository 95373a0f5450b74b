// SPDX-License-Identifier: MIT
// `tracker` of a config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "config/decoder/decoder_evaluate_config.h"
#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"
#include "config/shared/text_rules.h"

namespace dalle2 {

/// The keys that every logger has.
void log_fields(auto& f, auto& log) {
  f.field("resume", log.resume, "Go on with an earlier run of the logging service.");
  f.field("auto_resume",
          log.auto_resume,
          "After a crash or a stop, the same command goes on where the run ended. Needs "
          "`overwrite_data_path` and a loader. One logger of a list that has it is enough, and it "
          "holds for all.");
  f.field("verbose",
          log.verbose,
          "Print every record to the console too. No effect on the console logger, which always "
          "does.");
}

struct ConsoleLogConfig {
  static constexpr const char* kTag = "console";
  static constexpr const char* kDoc = "Prints one line a record.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;

  void fields(auto& f) { log_fields(f, *this); }
};

struct WandbLogConfig {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Logs to Weights & Biases: to the service while training or, without a key or with "
      "`WANDB_MODE=offline`, into a folder for `wandb sync`.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
  std::optional<std::string> wandb_entity, wandb_project, wandb_run_id, wandb_run_name;

  void fields(auto& f) {
    log_fields(f, *this);
    D2_REQUIRED(wandb_entity, "User or team that owns the project.", not_empty());
    D2_REQUIRED(wandb_project, "Project to log to.", not_empty());
    D2_FIELD(wandb_run_id, "Run to go on with; needed with `resume`.", not_empty());
    D2_FIELD(wandb_run_name, "Name of the run.", not_empty());
    f.check(wandb_entity.has_value(),
            "wandb_entity",
            "wandb_entity must be specified for wandb logger, got null");
    f.check(wandb_project.has_value(),
            "wandb_project",
            "wandb_project must be specified for wandb logger, got null");
    f.check(!resume || wandb_run_id.has_value(),
            "wandb_run_id",
            "must be given with resume: the run to go on with");
  }
};

/// Our addition: the reference knows the console and Weights & Biases.
struct TensorboardLogConfig {
  static constexpr const char* kTag = "tensorboard";
  static constexpr const char* kDoc =
      "Writes TensorBoard event files: numbers, pictures, captions. An extension of ours.";

  bool resume = false;
  bool auto_resume = false;
  bool verbose = false;
  std::optional<std::string> log_dir;

  void fields(auto& f) {
    log_fields(f, *this);
    D2_FIELD(log_dir,
             "Folder of the event files; null for `data_path`/tensorboard. Each start adds a file.",
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

/// The key that every loader has.
void load_fields(auto& f, auto& load) {
  f.field("only_auto_resume",
          load.only_auto_resume,
          "Load only when a run goes on by `log.auto_resume`; the first run starts afresh and need "
          "not find a file.");
}

struct LocalLoadConfig {
  static constexpr const char* kTag = "local";
  static constexpr const char* kDoc = "Loads a checkpoint from a file.";

  std::string file_path;  // required
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_REQUIRED(file_path, "The checkpoint, relative to the working directory.", not_empty());
    load_fields(f, *this);
  }
};

/// What plain http is allowed for, in the sections that send or load something.
void plain_http_field(auto& f, bool& allow_plain_http) {
  f.field("allow_plain_http",
          allow_plain_http,
          "Use an `http:` address of another machine, where anybody on the way can read and change "
          "what is sent, logins too. Not needed for this machine itself.");
}

struct UrlLoadConfig {
  static constexpr const char* kTag = "url";
  static constexpr const char* kDoc =
      "Downloads a checkpoint to `data_path`/loaded_checkpoint.pth before training.";

  std::string url;  // required
  std::optional<std::string> sha256;
  bool allow_plain_http = false;
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_REQUIRED(url,
                "Address of the checkpoint: `https:`, `http:`, `file:`, `s3://BUCKET/KEY` or "
                "`hf://OWNER/NAME/FILE` (`hf://OWNER/NAME@REVISION/FILE`).",
                text_without(checkpoint_url_fault));
    D2_FIELD(sha256,
             "What the SHA-256 of the file has to be, 64 hexadecimal digits; null for any.",
             text_without(sha256_fault));
    plain_http_field(f, allow_plain_http);
    load_fields(f, *this);
  }
};

/// A repository of the Hugging Face hub and who asks for it.
void hub_fields(auto& f, auto& hub) {
  f.required("huggingface_repo",
             hub.huggingface_repo,
             "Repository of models on the Hugging Face hub, `owner/name`.",
             text_without(hub_repo_fault));
  f.field("token_path",
          hub.token_path,
          "File with an access token. Null for `HF_TOKEN`, or else the file that `hf auth login` "
          "writes (`HF_TOKEN_PATH`, `HF_HOME`/token).",
          text_without(token_path_fault));
  f.field("revision", hub.revision, "Branch of the repository.", not_empty());
  plain_http_field(f, hub.allow_plain_http);
}

/// Our addition: the reference saves to the hub but does not load from it.
struct HuggingfaceLoadConfig {
  static constexpr const char* kTag = "huggingface";
  static constexpr const char* kDoc =
      "Downloads a checkpoint from the Hugging Face hub (or `HF_ENDPOINT`). An extension of ours.";

  std::string huggingface_repo;       // required
  std::string huggingface_file_path;  // required
  std::optional<std::string> token_path;
  std::string revision = "main";
  bool allow_plain_http = false;
  bool only_auto_resume = false;

  void fields(auto& f) {
    hub_fields(f, *this);
    D2_REQUIRED(huggingface_file_path, "File of the repository.", not_empty());
    load_fields(f, *this);
  }
};

struct WandbLoadConfig {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc = "Loads a checkpoint from a Weights & Biases run.";
  static constexpr const char* kUnavailable =
      "download the file and use \"local\" with its file_path";

  std::string wandb_file_path;  // required
  std::optional<std::string> wandb_run_path;
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_REQUIRED(wandb_file_path, "File of the run.", not_empty());
    D2_FIELD(wandb_run_path, "`entity/project/run`; null for the logger's own run.", not_empty());
    load_fields(f, *this);
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

enum class SaveType { checkpoint, model, lora };
template <>
inline constexpr std::array enum_names<SaveType> = {"checkpoint", "model", "lora"};

struct SaveTargets {
  std::optional<std::string> save_latest_to, save_best_to, save_meta_to;  // false and null: off
  SaveType save_type = SaveType::checkpoint;
  bool save_all = false;
  bool save_latest = true;
  bool save_best = true;

  void fields(auto& f) {
    D2_FIELD(save_latest_to,
             "File for the latest state. Its name may hold placeholders with Python's format specs "
             "(`{epoch:03d}`): of a decoder `{epoch}` `{sample}` `{next_task}` "
             "`{validation_losses}` `{samples_seen}`, of a prior `{epoch}` `{samples_seen}` "
             "`{best_validation_loss}`, of a VAE `{epoch}` `{step}` `{samples_seen}`.",
             path_or_off().placeholders());
    D2_FIELD(save_best_to,
             "The same for the state with the lowest validation loss.",
             path_or_off().placeholders());
    D2_FIELD(save_meta_to, "Folder for a copy of the config.", path_or_off(folder_fault));
    D2_FIELD(save_type,
             "`checkpoint` holds all that resuming needs, `model` the averaged weights alone, "
             "`lora` the averaged adapters of a run with `train.lora`.");
    D2_FIELD(save_all, "No effect, as in the reference.");
    D2_FIELD(save_latest, "No effect, as in the reference: leave out `save_latest_to` instead.");
    D2_FIELD(save_best, "No effect, as in the reference: leave out `save_best_to` instead.");
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
      "Saves to files; targets are relative to the working directory, folders are made.";
};

struct WandbSaveConfig : SaveTargets {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc = "Saves to a Weights & Biases run.";
  static constexpr const char* kUnavailable = "Weights & Biases is a later part; use \"local\"";

  std::optional<std::string> wandb_run_path;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_FIELD(wandb_run_path, "`entity/project/run`; null for the logger's own run.", not_empty());
  }
};

struct HuggingfaceSaveConfig : SaveTargets {
  static constexpr const char* kTag = "huggingface";
  static constexpr const char* kDoc =
      "Saves to a repository of the Hugging Face hub (or `HF_ENDPOINT`), which is made if it is not "
      "there.";

  std::string huggingface_repo;  // required
  std::optional<std::string> token_path;
  std::string revision = "main";
  bool is_private = true;
  bool model_card = true;
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    hub_fields(f, *this);
    f.field("private", is_private, "A repository that is made is private.");
    D2_FIELD(model_card,
             "Write a README.md with the config and samples into the repository, once, if it has "
             "none.");
  }
};

/// Our addition.
struct UrlSaveConfig : SaveTargets {
  static constexpr const char* kTag = "url";
  static constexpr const char* kDoc =
      "Saves by HTTP PUT: to WebDAV and other servers that take files, or to presigned addresses. "
      "An extension of ours.";

  std::optional<std::string> url;
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_FIELD(
        url,
        "Folder on the server, to which targets are relative. Null: each target is a whole "
        "address, for example a presigned one. A login stands in `~/.netrc` or in the address.",
        text_without(http_url_fault));
    plain_http_field(f, allow_plain_http);
    for (const auto* target : {&save_latest_to, &save_best_to, &save_meta_to}) {
      f.check(!*target || url.has_value() == !is_http_url(**target),
              "url",
              url ? "with it targets are paths below it, not whole addresses"
                  : "is needed, unless each target is a whole address (https://...)");
    }
  }
};

/// Our addition.
struct S3SaveConfig : SaveTargets {
  static constexpr const char* kTag = "s3";
  static constexpr const char* kDoc =
      "Saves to a bucket of S3, or of a store that speaks like it. Keys, region and endpoint come "
      "from the environment and the files of the AWS tools. An extension of ours.";

  std::string url;  // required
  bool allow_plain_http = false;

  void fields(auto& f) {
    SaveTargets::fields(f);
    D2_REQUIRED(
        url, "Where targets are relative to: `s3://BUCKET/FOLDER`.", text_without(s3_url_fault));
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

struct TrackerConfig {
  static constexpr const char* kDoc =
      "Where a run keeps its files, logs to, loads from and saves to.";

  std::string data_path = ".tracker_data";
  bool overwrite_data_path = false;
  OneOrMany<LogConfig> log = LogConfig(ConsoleLogConfig{});  // required
  std::optional<LoadConfig> load;                            // load_from null: none
  std::vector<SaveConfig> save;                              // required, one or many
  int64_t keep_last = 0;
  std::optional<int64_t> keep_every;
  double upload_deadline_seconds = 600;

  void fields(auto& f) {
    D2_FIELD(data_path,
             "Folder of the run's own files: log.jsonl, images, checkpoint.pth, model.pth, "
             "auto_resume.json.",
             not_empty());
    D2_FIELD(overwrite_data_path,
             "Use `data_path` though it exists (nothing in it is deleted); without it an existing "
             "folder is refused.");
    D2_REQUIRED(log,
                "Where records and images go: one logger or a list of them; `{}` for the console.",
                any_value().not_empty("at least one logger is needed, `{}` for the console"));
    D2_FIELD(load, "Which checkpoint to start from; null for none.");
    D2_REQUIRED(save,
                "Where checkpoints go: one saver or a list of them.",
                any_value()
                    .not_empty("`savers` must be set: give at least one saver, got none")
                    .one_is_list());
    D2_FIELD(keep_last,
             "Older checkpoints that are kept in `data_path`/snapshots besides checkpoint.pth, for "
             "a resume to fall back on; the one of the least validation loss is kept there too. An "
             "older file goes only when the new one was read back and is whole.",
             within(0, most::kEpochs));
    D2_FIELD(keep_every,
             "Samples seen after which a snapshot is kept for good; null for none.",
             within(1, most::kSamples));
    D2_FIELD(upload_deadline_seconds,
             "Seconds for which the end of a run waits for uploads that are under way; at most 10 "
             "after a stop signal. What is left stays in `data_path`/outbox: the next start sends "
             "it, or `dalle2-train sync`.",
             within(0, 1e6));
  }
};

}  // namespace dalle2
