// SPDX-License-Identifier: MIT
#include "tracker/places/checkpoint_source.h"

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "io/streams/url_source.h"
#include "net/url.h"
#include "tracker/places/remote_file.h"
#include "tracker/run_folder/run_files.h"

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
      throw ConfigError("/tracker/load/file_path: '{}' is a folder; expected a checkpoint file",
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
  bool is_remote() const override { return false; }
  void check_access() const override {}
  void fetch() override {}
  std::string name() const override { return path_; }
  std::string path() const override { return path_; }

 private:
  std::string path_;
};

/// What is fetched to data_path/loaded_checkpoint.pth.
class FetchedSource : public CheckpointSource {
 public:
  /// @param key of the config, for messages
  FetchedSource(bool only_auto_resume,
                std::unique_ptr<RemoteFile> file,
                std::string key,
                const std::string& data_path)
      : CheckpointSource(only_auto_resume),
        file_(std::move(file)),
        key_(std::move(key)),
        path_((fs::path(data_path) / kLoadedFile).string()) {}

  void check() const override {}
  void check_login() const override {
    with_place([this] { file_->check_login(); });
  }
  bool is_remote() const override { return true; }
  void check_access() const override {
    with_place([this] { file_->check_access(); });
  }
  void fetch() override {
    with_place([this] { file_->fetch(path_); });
  }
  std::string name() const override { return file_->name(); }
  std::string path() const override { return path_; }

 private:
  template <class Part>
  void with_place(Part&& part) const {
    try {
      part();
    } catch (const NetworkError& error) {
      throw NetworkError("{}: {}", key_, error.what());
    } catch (const DataError& error) {
      throw DataError("{}: {}", key_, error.what());
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      throw ConfigError(
          "{}{}", text.starts_with("/tracker/") ? "" : std::string(key_) + ": ", text);
    }
  }

  std::unique_ptr<RemoteFile> file_;
  std::string key_, path_;
};

template <class Make>
auto at_place(const std::string& key, Make&& make) {
  try {
    return make();
  } catch (const ConfigError& error) {
    throw ConfigError("{}: {}", key, error.what());
  }
}

std::unique_ptr<CheckpointSource> make_url_source(const UrlLoadConfig& config,
                                                  const std::string& data_path) {
  const char* const key = "/tracker/load/url";
  std::error_code error;
  const bool is_file = config.url.starts_with("file:");
  if (is_file && !config.only_auto_resume && !fs::exists(local_path(config.url), error)) {
    throw ConfigError("{}: Model not found at {}", key, config.url);
  }
  auto file = at_place(key, [&] {
    return make_remote_file(config.url,
                            {.sha256 = config.sha256, .allow_plain_http = config.allow_plain_http});
  });
  return std::make_unique<FetchedSource>(config.only_auto_resume, std::move(file), key, data_path);
}

std::unique_ptr<CheckpointSource> make_hub_source(const HuggingfaceLoadConfig& config,
                                                  const std::string& data_path) {
  const char* const key = "/tracker/load/huggingface_file_path";
  const std::string url = fmt::format("hf://{}@{}/{}",
                                      config.huggingface_repo,
                                      uri_encode(config.revision),
                                      config.huggingface_file_path);
  auto file = at_place(key, [&] {
    return make_remote_file(
        url, {.token_path = config.token_path, .allow_plain_http = config.allow_plain_http});
  });
  return std::make_unique<FetchedSource>(config.only_auto_resume, std::move(file), key, data_path);
}

/// A file of the run that is logged to, which may get its id later.
class OwnRunFile : public RemoteFile {
 public:
  OwnRunFile(OwnWandbRun run, std::string file) : run_(std::move(run)), file_(std::move(file)) {}

  std::string name() const override {
    const auto run = run_();
    return run ? make_wandb_file(*run, file_)->name() : file_ + " of the logger's run";
  }
  void check_login() const override {
    if (const auto run = run_()) make_wandb_file(*run, file_)->check_login();
  }
  void check_access() const override { found()->check_access(); }
  void fetch(const std::string& path) const override { found()->fetch(path); }

  std::unique_ptr<RemoteFile> found() const {
    if (const auto run = run_()) return make_wandb_file(*run, file_);
    throw ConfigError(
        "/tracker/load/wandb_run_path: null means the logger's own run, which is a new one\n  Give "
        "entity/project/run_id, or wandb_run_id with \"resume\" in /tracker/log.");
  }

 private:
  OwnWandbRun run_;
  std::string file_;
};

std::unique_ptr<CheckpointSource> make_wandb_source(const WandbLoadConfig& config,
                                                    const std::string& data_path,
                                                    OwnWandbRun own_run) {
  const char* const key = "/tracker/load/wandb_file_path";
  std::unique_ptr<RemoteFile> file = at_place("/tracker/load/wandb_run_path", [&] {
    return config.wandb_run_path ? make_wandb_file(*config.wandb_run_path, config.wandb_file_path)
                                 : nullptr;
  });
  if (!file) {
    auto own = std::make_unique<OwnRunFile>(std::move(own_run), config.wandb_file_path);
    if (!config.only_auto_resume) own->found();
    file = std::move(own);
  }
  return std::make_unique<FetchedSource>(config.only_auto_resume, std::move(file), key, data_path);
}

}  // namespace

std::unique_ptr<CheckpointSource> make_checkpoint_source(const LoadConfig& config,
                                                         const std::string& data_path,
                                                         OwnWandbRun own_wandb_run) {
  if (const auto* local = std::get_if<LocalLoadConfig>(&config)) {
    return std::make_unique<LocalFile>(*local);
  }
  if (const auto* url = std::get_if<UrlLoadConfig>(&config))
    return make_url_source(*url, data_path);
  if (const auto* hub = std::get_if<HuggingfaceLoadConfig>(&config)) {
    return make_hub_source(*hub, data_path);
  }
  return make_wandb_source(std::get<WandbLoadConfig>(config), data_path, std::move(own_wandb_run));
}

}  // namespace dalle2
