// SPDX-License-Identifier: MIT
#include "tracker/places/saver.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"
#include "tracker/places/destination.h"
#include "tracker/places/model_card.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/auto_resume.h"
#include "tracker/run_folder/run_folder.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// What a run writes itself besides its checkpoints.
constexpr const char* kRecords[] = {
    kAutoResumeFile, kLockFile, kLogFile, kRecordFile, kFollowersFile};
/// Folders of a run in which a saver has nothing to put.
constexpr const char* kClosedFolders[] = {
    kImagesFolder, kOutboxFolder, kAbandonedFolder, kSnapshotsFolder};

/// A target, filled in.
struct FilledTarget {
  const char* key;
  std::string target;  // as the config has it
  std::string path;
};

/// @throws ConfigError none given, an unknown placeholder, a bad format spec
std::vector<FilledTarget> filled_targets(const SaveTargets& targets, const FormatFields& example) {
  std::vector<FilledTarget> filled;
  const auto fill = [&](const char* key, const std::optional<std::string>& target) {
    if (!target) return;
    try {
      filled.push_back({key, *target, python_format_example(*target, example)});
    } catch (const ConfigError& error) {
      throw ConfigError("/tracker/save/{}: '{}': {}", key, public_url(*target), error.what());
    }
  };
  fill("save_latest_to", targets.save_latest_to);
  fill("save_best_to", targets.save_best_to);
  if (targets.save_meta_to) {
    filled.push_back(
        {"save_meta_to", *targets.save_meta_to, *targets.save_meta_to + "/config.json"});
  }
  if (!filled.empty()) return filled;
  throw ConfigError(
      "/tracker/save: At least one saving option must be specified: save_latest_to, save_best_to "
      "or "
      "save_meta_to");
}

/// Those that are the same at every save: without placeholders.
std::vector<std::string> fixed_targets(const SaveTargets& targets) {
  std::vector<std::string> fixed;
  for (const auto& target : {targets.save_latest_to, targets.save_best_to}) {
    if (!target) continue;
    const std::vector<std::string> literals = python_format_literals(*target);
    if (literals.size() == 1) fixed.push_back(literals.front());
  }
  return fixed;
}

/// @param hint what a path that leaves its folder should be
void check_path(const FilledTarget& filled, const char* hint) {
  if (filled.target.find("://") != std::string::npos) {  // records and messages show what is a path
    throw ConfigError(
        "/tracker/save/{}: '{}' is a whole address, which only the saver \"url\" takes, without its key "
        "`url`\n  Use that saver, or give a path.",
        filled.key,
        public_url(filled.target));
  }
  if (filled.path.empty() || filled.path.back() == '/') {
    throw ConfigError("/tracker/save/{}: '{}' names no file, e.g. 'checkpoints/latest.pth'",
                      filled.key,
                      filled.target);
  }
  for (const fs::path& part : fs::path(filled.path)) {
    if (part != "..") continue;
    throw ConfigError(
        "/tracker/save/{}: '..' is refused in '{}': {}", filled.key, filled.target, hint);
  }
}

/// Copies (links, where that can be) on this machine; targets are relative to the working
/// directory, not to data_path.
class LocalSaver : public Saver {
 public:
  LocalSaver(SaveTargets targets, const RunFolder& folder)
      : Saver(std::move(targets)), folder_(folder) {}

  void check_targets(const FormatFields& example, const std::string& data_path) const override {
    for (const FilledTarget& filled : filled_targets(targets(), example)) {
      check_path(filled,
                 "targets are relative to the working directory; write an absolute path for one "
                 "outside of it");
      if (filled.key != std::string_view("save_meta_to")) check_against_own(filled, data_path);
    }
  }

  void check_access(const FormatFields& example, Deadline /*deadline*/) const override {
    for (const FilledTarget& filled : filled_targets(targets(), example)) {
      const std::optional<std::string> why = why_file_not_writable(filled.path);
      if (!why) continue;
      throw ConfigError(
          "/tracker/save/{}: '{}' cannot be saved: {}\n"
          "  Choose another target, or make that place writable for this user.",
          filled.key,
          filled.path,
          *why);
    }
  }

  std::vector<std::string> fixed_local_targets() const override { return fixed_targets(targets()); }

  void init(Uploads* /*uploads*/, const std::optional<std::string>& /*own_wandb_run*/) override {
    log_info("track", "Saving {} locally", save_type_name(targets().save_type));
  }

  /// A checkpoint, a model or adapters name their run; of copies of the config run.json has the hash.
  bool may_replace(const std::string& path) const override { return folder_.owns(path); }

  void save_file(const FileToSave& file, const std::string& target) override {
    std::error_code error;
    if (fs::equivalent(file.path, target, error)) return;  // the file in data_path is the target
    // A second name of bytes that were read back already: neither time nor space. Both are only
    // ever replaced, never changed.
    if (!link_new_file(file.path, target)) {
      const bool is_same = file.kind == "config" && fs::is_regular_file(target, error) &&
                           read_file(target) == read_file(file.path);
      if (!is_same && !may_replace(target)) {
        throw ConfigError(
            "{}: a file lies there that this run has not saved, and it is not replaced\n  Move it "
            "away: mv {} {}.earlier",
            target,
            target,
            target);
      }
      link_file_atomically(file.path, target);
    }
    log_info("track", "Saved {} to local path {}", file.kind, target);
  }

 private:
  /// A saver that copies the model over the run's own checkpoint (or the other way round) would leave
  /// nothing to resume from.
  void check_against_own(const FilledTarget& filled, const std::string& data_path) const {
    const fs::path path = fs::absolute(filled.path).lexically_normal();
    for (const SaveType type : {SaveType::checkpoint, SaveType::model, SaveType::lora}) {
      const char* other = own_file(type);
      const bool taken = path == fs::absolute(fs::path(data_path) / other).lexically_normal();
      if (type == targets().save_type || !taken) continue;
      throw ConfigError(
          "/tracker/save: '{}' is where the run keeps its own {}, a {} cannot be saved there: "
          "choose another path",
          filled.target,
          other,
          save_type_name(targets().save_type));
    }
    const fs::path target = canonical_folder(path), folder = canonical_folder(data_path);
    if (is_in_folder(folder, target)) {
      throw ConfigError(
          "/tracker/save: '{}' is data_path or a folder above it; a file is expected, such as "
          "{}/latest.pth",
          filled.target,
          data_path);
    }
    if (path.extension() == ".part") {
      throw ConfigError(
          "/tracker/save: '{}' has the name of an unfinished file: choose another name",
          filled.target);
    }
    const fs::path below = target.lexically_relative(folder);
    const std::string name = below.string();
    const auto is_one_of = [](const auto& names, const std::string& text) {
      return std::find(std::begin(names), std::end(names), text) != std::end(names);
    };
    const bool is_own = is_one_of(kRecords, name) || name.ends_with("_config.json") ||
                        (!below.empty() && is_one_of(kClosedFolders, below.begin()->string()));
    if (!is_own) return;
    throw ConfigError(
        "/tracker/save: '{}' is a place of the run's own files, a {} cannot be saved there: choose "
        "another path",
        filled.target,
        save_type_name(targets().save_type));
  }

  const RunFolder& folder_;
};

SaveTargets targets_of(const SaveConfig& config) {
  return std::visit([](const auto& saver) -> SaveTargets { return saver; }, config);
}

/// Puts files into the outbox, from where they are sent to a service.
class RemoteSaver : public Saver {
 public:
  RemoteSaver(const SaveConfig& config, std::unique_ptr<Destination> destination)
      : Saver(targets_of(config)), config_(config), destination_(std::move(destination)) {}

  bool is_remote() const override { return true; }

  void check_targets(const FormatFields& example, const std::string& /*data_path*/) const override {
    for (const FilledTarget& filled : filled_targets(targets(), example)) {
      if (takes_addresses()) continue;
      check_path(filled, "targets are names below the place of the saver");
      if (filled.path.front() != '/') continue;
      throw ConfigError("/tracker/save/{}: '{}' begins with '/': targets are names below {}",
                        filled.key,
                        filled.target,
                        destination_->name());
    }
  }

  void check_access(const FormatFields& /*example*/, Deadline deadline) const override {
    try {
      destination_->check_access({.deadline = deadline});
    } catch (const NetworkError& error) {
      const bool is_away = may_pass(error) || std::chrono::steady_clock::now() >= deadline;
      if (!is_away) throw NetworkError("/tracker/save: {}", error.what());
      log_warning("track",
                  "{}\n  The run continues: what it saves waits in its data_path until {} is back.",
                  error.what(),
                  destination_->name());
    }
  }

  void init(Uploads* uploads, const std::optional<std::string>& own_wandb_run) override {
    uploads_ = uploads;
    auto* const wandb = std::get_if<WandbSaveConfig>(&config_);
    if (wandb != nullptr && !wandb->wandb_run_path) {
      D2_CHECK(own_wandb_run.has_value(), "a W&B saver without a run");
      wandb->wandb_run_path = own_wandb_run;
      destination_ = make_destination(config_);
    }
    uploads->serve(destination_);
    log_info("track", "Saving {} to {}", save_type_name(targets().save_type), destination_->name());
  }

  void save_file(const FileToSave& file, const std::string& target) override {
    send({.path = file.path, .target = target, .kind = file.kind, .values = file.values});
  }

  void send_card(const CardFacts& facts, const std::string& scratch) override {
    const auto* hub = std::get_if<HuggingfaceSaveConfig>(&config_);
    if (hub == nullptr || !destination_->wants_card()) return;
    const std::vector<std::string> fixed = fixed_targets(targets());
    CardFacts own = facts;
    own.repo = hub->huggingface_repo;
    if (hub->revision != "main") own.revision = hub->revision;
    own.save_type = targets().save_type;
    own.file = fixed.empty() ? "" : fixed.front();
    const auto send_new =
        [&](const std::string& path, const std::string& target, const char* kind) {
          send({.path = path, .target = target, .kind = kind, .only_if_absent = true});
        };
    for (const CardPicture& picture : own.pictures)
      send_new(picture.path, picture.target(), "picture");
    write_file_atomically(scratch, model_card(own));
    send_new(scratch, "README.md", "model card");
    remove_file(scratch);  // the outbox has it
  }

 private:
  void send(FileToSend file) {
    file.to = destination_->name();
    destination_->hide_secrets(file);
    uploads_->add(file);
  }
  bool takes_addresses() const {
    const auto* const url = std::get_if<UrlSaveConfig>(&config_);
    return url != nullptr && !url->url;
  }

  SaveConfig config_;
  std::shared_ptr<Destination> destination_;
  Uploads* uploads_ = nullptr;
};

}  // namespace

std::string save_type_name(SaveType type) {
  return enum_names<SaveType>[static_cast<size_t>(type)];
}

const char* own_file(SaveType type) {
  constexpr const char* kFiles[] = {kCheckpointFile, kModelFile, kLoraFile};
  return kFiles[static_cast<size_t>(type)];
}

std::unique_ptr<Destination> make_destination(const SaveConfig& config) {
  if (const auto* hub = std::get_if<HuggingfaceSaveConfig>(&config)) {
    return make_hub_destination(*hub);
  }
  if (const auto* url = std::get_if<UrlSaveConfig>(&config)) return make_url_destination(*url);
  if (const auto* s3 = std::get_if<S3SaveConfig>(&config)) return make_s3_destination(*s3);
  if (const auto* wandb = std::get_if<WandbSaveConfig>(&config)) {
    return make_wandb_destination(*wandb);
  }
  return nullptr;
}

std::unique_ptr<Saver> make_saver(const SaveConfig& config, const RunFolder& folder) {
  if (const auto* local = std::get_if<LocalSaveConfig>(&config)) {
    return std::make_unique<LocalSaver>(*local, folder);
  }
  return std::make_unique<RemoteSaver>(config, make_destination(config));
}

}  // namespace dalle2
