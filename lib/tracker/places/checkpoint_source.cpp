// SPDX-License-Identifier: MIT
#include "tracker/places/checkpoint_source.h"

#include <filesystem>
#include <utility>

#include "base/error.h"
#include "io/streams/url_source.h"
#include "net/url.h"
#include "tracker/run_folder/run_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Errors name the key of the config.
template <class Part>
void with_key(const std::string& key, Part&& part) {
  try {
    part();
  } catch (const NetworkError& error) {
    throw NetworkError("{}: {}", key, error.what());
  } catch (const DataError& error) {
    throw DataError("{}: {}", key, error.what());
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    throw ConfigError("{}{}", text.starts_with("/tracker/") ? "" : key + ": ", text);
  }
}

}  // namespace

CheckpointSource::CheckpointSource(const LoadConfig& config,
                                   const std::string& data_path,
                                   OwnWandbRun own_wandb_run)
    : only_auto_resume_(std::visit([](const auto& load) { return load.only_auto_resume; }, config)),
      path_((fs::path(data_path) / kLoadedFile).string()) {
  const auto open = [&](const std::string& url, const RemoteFileOptions& options) {
    with_key(key_, [&] { file_ = make_remote_file(url, options); });
  };
  if (const auto* local = std::get_if<LocalLoadConfig>(&config)) {
    path_ = local->file_path;
  } else if (const auto* url = std::get_if<UrlLoadConfig>(&config)) {
    key_ = "/tracker/load/url";
    std::error_code error;
    const bool is_file = url->url.starts_with("file:");
    if (is_file && !only_auto_resume_ && !fs::exists(local_path(url->url), error))
      throw ConfigError("{}: Model not found at {}", key_, url->url);
    open(url->url, {.sha256 = url->sha256, .allow_plain_http = url->allow_plain_http});
  } else if (const auto* hub = std::get_if<HuggingfaceLoadConfig>(&config)) {
    key_ = "/tracker/load/huggingface_file_path";
    open(fmt::format("hf://{}@{}/{}",
                     hub->huggingface_repo,
                     uri_encode(hub->revision),
                     hub->huggingface_file_path),
         {.token_path = hub->token_path, .allow_plain_http = hub->allow_plain_http});
  } else {
    const auto& wandb = std::get<WandbLoadConfig>(config);
    key_ = "/tracker/load/wandb_file_path";
    if (const auto run = wandb.wandb_run_path) own_wandb_run = [run] { return run; };
    with_key("/tracker/load/wandb_run_path", [&] {
      file_ = make_wandb_file(
          std::move(own_wandb_run), wandb.wandb_file_path, /*may_come_later=*/only_auto_resume_);
    });
  }
}

void CheckpointSource::check() const {
  if (file_) return;
  std::error_code error;
  if (fs::is_directory(path_, error)) {
    throw ConfigError("/tracker/load/file_path: '{}' is a folder; expected a checkpoint file",
                      path_);
  }
  if (only_auto_resume() || fs::exists(path_, error)) return;
  throw ConfigError(
      "Model not found at {}\n"
      "  /tracker/load/file_path is relative to the working directory, which is {}.\n"
      "  Correct it, leave /tracker/load out to start from the beginning, or set only_auto_resume "
      "for a run whose first start has no file yet.",
      path_,
      fs::current_path(error).string());
}

void CheckpointSource::check_login() const {
  if (file_) with_key(key_, [this] { file_->check_login(); });
}

void CheckpointSource::check_access() const {
  if (file_) with_key(key_, [this] { file_->check_access(); });
}

void CheckpointSource::fetch() const {
  if (file_) with_key(key_, [this] { file_->fetch(path_); });
}

}  // namespace dalle2
