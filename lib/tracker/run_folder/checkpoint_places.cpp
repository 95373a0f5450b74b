// SPDX-License-Identifier: MIT
#include "tracker/run_folder/checkpoint_places.h"

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// A file of this machine, relative to the working directory.
class LocalFile : public CheckpointSource {
 public:
  explicit LocalFile(const LocalLoadConfig& config)
      : CheckpointSource(config.only_auto_resume), path_(config.file_path) {}

  void check() const override {
    std::error_code error;
    if (fs::is_directory(path_, error)) {
      throw ConfigError("/tracker/load/file_path: '{}' is a folder, a checkpoint file is expected",
                        path_);
    }
    if (only_auto_resume() || fs::exists(path_, error)) return;
    throw ConfigError(
        "Model not found at {}\n"
        "  /tracker/load/file_path is relative to the working directory, which is {}.\n"
        "  Correct it, leave /tracker/load out to start from the beginning, or set "
        "only_auto_resume for a "
        "run whose first start has no file yet.",
        path_,
        fs::current_path(error).string());
  }
  std::string fetch() const override { return path_; }

 private:
  std::string path_;
};

/// Copies (links, where that can be) on this machine; targets are relative to the working
/// directory, not to data_path.
class LocalSaver : public Saver {
 public:
  using Saver::Saver;

  void check_writable(const FormatFields& example) const override {
    const auto check = [&](const char* key, const std::string& path) {
      const std::optional<std::string> why = why_file_not_writable(path);
      if (!why) return;
      throw ConfigError(
          "/tracker/save/{}: '{}' cannot be saved: {}\n"
          "  Choose another target, or make that place writable for this user.",
          key,
          path,
          *why);
    };
    if (targets().save_latest_to) {
      check("save_latest_to", python_format_example(*targets().save_latest_to, example));
    }
    if (targets().save_best_to) {
      check("save_best_to", python_format_example(*targets().save_best_to, example));
    }
    if (targets().save_meta_to) check("save_meta_to", *targets().save_meta_to + "/config.json");
  }

  void init() override {
    log_info("track", "Saving {} locally", save_type_name(targets().save_type));
  }

  void save_file(const std::string& local_path,
                 const std::string& target,
                 const std::string& kind) override {
    std::error_code error;
    if (fs::equivalent(local_path, target, error)) return;  // the file in data_path is the target
    // A second name of bytes that were read back already: neither time nor space. Both are only
    // ever replaced, never changed.
    link_file_atomically(local_path, target);
    log_info("track", "Saved {} to local path {}", kind, target);
  }
};

void check_path(const char* key, const std::string& target, const std::string& path) {
  if (path.empty() || path.back() == '/') {
    throw ConfigError(
        "/tracker/save/{}: '{}' names no file, e.g. 'checkpoints/latest.pth'", key, target);
  }
  for (const fs::path& part : fs::path(path)) {
    if (part == "..") {
      throw ConfigError(
          "/tracker/save/{}: '..' is refused in '{}': targets are relative to the working "
          "directory; write an absolute path for one outside of it",
          key,
          target);
    }
  }
}

}  // namespace

std::unique_ptr<CheckpointSource> make_checkpoint_source(const LoadConfig& config) {
  if (const auto* local = std::get_if<LocalLoadConfig>(&config)) {
    return std::make_unique<LocalFile>(*local);
  }
  throw ConfigError("/tracker/load/load_from: only 'local' is available yet");
}

std::string save_type_name(SaveType type) {
  return enum_names<SaveType>[static_cast<size_t>(type)];
}

void check_save_targets(const SaveTargets& targets, const FormatFields& example) {
  if (!targets.save_latest_to && !targets.save_best_to && !targets.save_meta_to) {
    throw ConfigError(
        "/tracker/save: At least one saving option must be specified: save_latest_to, save_best_to "
        "or save_meta_to");
  }
  const auto check_template = [&](const char* key, const std::optional<std::string>& target) {
    if (!target) return;
    std::string path;
    try {
      path = python_format_example(*target, example);
    } catch (const ConfigError& error) {
      throw ConfigError("/tracker/save/{}: '{}': {}", key, *target, error.what());
    }
    check_path(key, *target, path);
  };
  check_template("save_latest_to", targets.save_latest_to);
  check_template("save_best_to", targets.save_best_to);
  if (targets.save_meta_to) {
    check_path("save_meta_to", *targets.save_meta_to, *targets.save_meta_to + "/config.json");
  }
}

std::unique_ptr<Saver> make_saver(const SaveConfig& config) {
  if (const auto* local = std::get_if<LocalSaveConfig>(&config)) {
    return std::make_unique<LocalSaver>(*local);
  }
  throw ConfigError("/tracker/save/save_to: only 'local' is available yet");
}

}  // namespace dalle2
