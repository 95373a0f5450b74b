// SPDX-License-Identifier: MIT
// The calls of the Weights & Biases service that a run needs. Its API is not documented: these are the
// calls that its own client makes (wandb 0.31).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/untrusted_json.h"
#include "net/http_call.h"

namespace dalle2 {

enum class WandbMode { kOnline, kOffline, kDisabled };

/// Who we are to the service and where it is, read as its own client does: environment, ~/.netrc, `settings`.
struct WandbAccess {
  WandbMode mode = WandbMode::kOffline;
  std::string mode_reason = {};  ///< why, for the log: "WANDB_MODE is offline"
  std::string base_url = {};     ///< without a slash at its end
  std::string api_key = {};      ///< a secret; empty: none was found
  std::string folder = {};       ///< of the offline runs: "./wandb"
  bool console = true;           ///< what is printed is sent too

  // What the environment says of the run; empty: nothing.
  std::string run_id = {}, name = {}, notes = {}, group = {}, job_type = {};
  std::vector<std::string> tags = {};
};

/// By the variables in docs/tracking.md. Key: WANDB_API_KEY, else the password of the server in the file
/// NETRC or ~/.netrc. Settings: wandb/settings in the folder before those of WANDB_CONFIG_DIR, else of
/// ~/.config/wandb.
/// @throws ConfigError an unknown mode, no key for online, a malformed key or url, plain http elsewhere
WandbAccess find_wandb_access();

struct WandbRunPath {
  std::string entity, project, run_id;

  std::string text() const { return entity + "/" + project + "/" + run_id; }
};

/// The address of a run for people: "https://wandb.ai/entity/project/runs/id".
std::string wandb_page(const WandbAccess& access, const WandbRunPath& run);

/// "entity/project/id", also with "runs" before the id, as in the page's address. @throws ConfigError
WandbRunPath parse_wandb_run_path(const std::string& text);

struct WandbStoredFile {
  std::string url;  ///< to GET; may be signed: show only public_url() of it
  int64_t size = 0;
  std::string md5;  ///< base64; empty: not known
};

struct WandbUpload {
  std::string name;  ///< in the run, with its folders: "media/images/a.png"
  std::string content = {};
  std::string path = {};  ///< instead of `content`
};

struct WandbRunState {
  int64_t history_lines = 0, event_lines = 0, console_lines = 0;
  int64_t last_step = -1;  ///< the `_step` of the last row
  double runtime_seconds = 0;
  Json last_row = {};  ///< with zeros for NaN and infinities
};

struct WandbRunInfo {
  WandbRunPath path;
  std::string name = {}, notes = {}, group = {}, job_type = {}, host = {};
  std::vector<std::string> tags = {};
  std::string config = "{}";  ///< JSON: {"key": {"value": ...}}
};

/// Files that no later attempt would bring there, and why the first of them was refused.
struct RefusedFiles : HttpStatusError {
  explicit RefusedFiles(const HttpStatusError& why) : HttpStatusError(why) {}
  std::vector<std::string> names;
};

class WandbApi {
 public:
  WandbApi(WandbAccess access, HttpOptions options)
      : access_(std::move(access)), options_(std::move(options)) {}
  const WandbAccess& access() const { return access_; }
  HttpOptions& options() { return options_; }

  /// The login's own entity. @throws HttpStatusError a refused key, naming what to do; NetworkError
  std::string viewer() const;
  /// What is known of a run; none if there is no such run.
  std::optional<WandbRunState> find_run(const WandbRunPath& path) const;
  /// Makes or changes the run. @return its path, with the names that the service gave it
  WandbRunPath upsert(const WandbRunInfo& info) const;
  /// Lines of the run's files, its summary and its end, as file_stream takes them. One attempt: after a lost
  /// answer find_run() tells what has arrived.
  void stream(const WandbRunPath& path, const Json& content) const;
  /// @throws RefusedFiles when all others have arrived
  void upload(const WandbRunPath& path, const std::vector<WandbUpload>& files) const;
  /// A file of a run; none if the run has none of that name.
  std::optional<WandbStoredFile> find_file(const WandbRunPath& path, const std::string& name) const;
  /// Headers for a GET of WandbStoredFile::url: the login, if it is of the service's own host.
  std::vector<std::string> download_headers(const std::string& url) const;

 private:
  Json graphql(const std::string& query, const Json& variables) const;
  HttpCall call(const std::string& method, const std::string& path) const;

  WandbAccess access_;
  HttpOptions options_;
};

}  // namespace dalle2
