// SPDX-License-Identifier: MIT
#include "tracker/checkpoint_source.h"

#include <filesystem>

#include "base/error.h"

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

}  // namespace

std::unique_ptr<CheckpointSource> make_checkpoint_source(const LoadConfig& config) {
  if (const auto* local = std::get_if<LocalLoadConfig>(&config)) {
    return std::make_unique<LocalFile>(*local);
  }
  throw ConfigError("/tracker/load/load_from: only 'local' is available yet");
}

}  // namespace dalle2
