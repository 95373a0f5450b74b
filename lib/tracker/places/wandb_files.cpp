// SPDX-License-Identifier: MIT
// Files of Weights & Biases runs: fetched from one, sent to one.
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "net/wandb_api.h"
#include "tracker/places/destination.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

constexpr const char* kHowToLogIn =
    "Set WANDB_API_KEY, or put the key into ~/.netrc (`wandb login` does so).";

/// "https://api.wandb.ai/entity/project/runs/id".
std::string address_of(const WandbAccess& access, const WandbRunPath& run) {
  return fmt::format("{}/{}", public_url(access.base_url), run.page());
}

class WandbRemoteFile : public RemoteFile {
 public:
  WandbRemoteFile(OwnWandbRun own_run, std::string file, bool may_come_later)
      : own_run_(std::move(own_run)), file_(std::move(file)) {
    if (!may_come_later || own_run_()) run();
  }

  std::string name() const override {
    return own_run_() ? address_of(find_wandb_access(), run()) + "/files/" + file_
                      : file_ + " of the logger's run";
  }
  void check_login() const override {
    if (own_run_()) find_wandb_access();
  }
  void check_access() const override { find(find_wandb_access()); }
  void fetch(const std::string& path) const override {
    const WandbAccess access = find_wandb_access();
    const WandbStoredFile found = find(access);
    HttpGet request{.url = found.url, .shown = name()};
    request.headers = WandbApi(access, {}).download_headers(found.url);
    ExpectedFile expected{.md5_base64 = found.md5};
    if (found.size > 0) expected.bytes = static_cast<uint64_t>(found.size);
    store_fetched(std::move(request), path, expected, name());
  }

 private:
  WandbRunPath run() const {
    if (const auto path = own_run_()) return parse_wandb_run_path(*path);
    throw ConfigError(
        "/tracker/load/wandb_run_path: null means the logger's own run, which is a new one\n  Give "
        "entity/project/run_id, or wandb_run_id with \"resume\" in /tracker/log.");
  }
  WandbStoredFile find(const WandbAccess& access) const {
    const WandbRunPath of = run();
    if (access.api_key.empty())
      throw NetworkError("{}: no API key was found.\n  {}", name(), kHowToLogIn);
    if (const auto found = WandbApi(access, {}).find_file(of, file_)) return *found;
    throw NetworkError(
        "{}: there is no such file, or no such run for this login\n  Check wandb_run_path and "
        "wandb_file_path: the page of the run lists its files.",
        name());
  }

  OwnWandbRun own_run_;
  std::string file_;
};

class WandbDestination : public Destination {
 public:
  explicit WandbDestination(const std::optional<std::string>& run) : access_(find_wandb_access()) {
    if (run) run_ = parse_wandb_run_path(*run);
  }

  std::string name() const override {
    return run_ ? address_of(access_, *run_) : public_url(access_.base_url);
  }
  std::string place_of(const std::string& target) const override {
    return name() + "/files/" + target;
  }
  void check_access(const HttpCallOptions& options) override {
    if (access_.mode != WandbMode::kOnline) {
      throw NetworkError("{}: nothing can be saved there: {}.\n  {} Or choose another saver.",
                         name(),
                         access_.mode_reason,
                         kHowToLogIn);
    }
    WandbApi(access_, options).viewer();
  }
  void send(const FileToSend& file,
            UploadNotes& /*notes*/,
            const std::function<bool()>& cancelled) override {
    D2_CHECK(run_.has_value(), "the run of a saver is known when the loggers have begun");
    const HttpCallOptions options{.ends_at_stop = false, .cancelled = cancelled};
    WandbApi(access_, options).upload(*run_, {{.name = file.target, .path = file.path}});
  }

 private:
  WandbAccess access_;
  std::optional<WandbRunPath> run_;
};

}  // namespace

std::unique_ptr<RemoteFile> make_wandb_file(OwnWandbRun run,
                                            const std::string& file,
                                            bool may_come_later) {
  return std::make_unique<WandbRemoteFile>(std::move(run), file, may_come_later);
}

std::unique_ptr<Destination> make_wandb_destination(const WandbSaveConfig& config) {
  return std::make_unique<WandbDestination>(config.wandb_run_path);
}

}  // namespace dalle2
