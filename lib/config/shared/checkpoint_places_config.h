// SPDX-License-Identifier: MIT
// `tracker.load` and `tracker.save` of a config: where checkpoints come from and go to.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>

#include "config/reading/reflect.h"
#include "config/reading/types.h"
#include "config/shared/text_rules.h"

namespace dalle2 {

/// The key that every loader has.
void load_fields(auto& f, auto& load) {
  f.field("only_auto_resume",
          load.only_auto_resume,
          "Load the file only when the run resumes; the first start needs no file.");
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
  f.field(
      "allow_plain_http",
      allow_plain_http,
      "Allow `http:` to other machines. Anybody on the way can then read and change the traffic, "
      "including logins.");
}

struct UrlLoadConfig {
  static constexpr const char* kTag = "url";
  static constexpr const char* kDoc =
      "Downloads a checkpoint to `data_path/loaded_checkpoint.pth` before training.";

  std::string url;  // required
  std::optional<std::string> sha256;
  bool allow_plain_http = false;
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_REQUIRED(url,
                "URL of the checkpoint: `https:`, `http:`, `file:`, `s3://BUCKET/KEY` or "
                "`hf://OWNER/NAME/FILE` (with a revision: `hf://OWNER/NAME@REVISION/FILE`).",
                text_without(checkpoint_url_fault));
    D2_FIELD(sha256,
             "SHA-256 of the file, 64 hexadecimal digits; null accepts any file.",
             text_without(sha256_fault));
    plain_http_field(f, allow_plain_http);
    load_fields(f, *this);
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
struct HuggingfaceLoadConfig {
  static constexpr const char* kTag = "huggingface";
  static constexpr const char* kDoc =
      "Extension: downloads a checkpoint from the Hugging Face hub (or `HF_ENDPOINT`).";

  std::string huggingface_repo;       // required
  std::string huggingface_file_path;  // required
  std::optional<std::string> token_path;
  std::string revision = "main";
  bool allow_plain_http = false;
  bool only_auto_resume = false;

  void fields(auto& f) {
    hub_fields(f, *this);
    D2_REQUIRED(huggingface_file_path, "Path of the file in the repository.", not_empty());
    load_fields(f, *this);
  }
};

struct WandbLoadConfig {
  static constexpr const char* kTag = "wandb";
  static constexpr const char* kDoc =
      "Downloads a file of a Weights & Biases run. The API key comes from `WANDB_API_KEY` or "
      "`~/.netrc`.";

  std::string wandb_file_path;  // required
  std::optional<std::string> wandb_run_path;
  bool only_auto_resume = false;

  void fields(auto& f) {
    D2_REQUIRED(wandb_file_path, "Path of the file in the run.", not_empty());
    D2_FIELD(wandb_run_path,
             "`entity/project/run_id`; null for the run that the W&B logger continues.",
             not_empty());
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
    D2_FIELD(model_card,
             "Write a `README.md` with config and samples into a repository that has none.");
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

}  // namespace dalle2
