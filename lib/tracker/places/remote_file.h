// SPDX-License-Identifier: MIT
// A file that is fetched before it is read: of a web server, a store, the Hugging Face hub, a run of
// Weights & Biases. The checkpoint that a run starts from may be one (tracker.load of the config).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "config/shared/tracker_config.h"
#include "io/streams/stream.h"

namespace dalle2 {

/// What a file has to be, as far as that is known.
struct ExpectedFile {
  std::optional<uint64_t> bytes = {};
  std::optional<std::string> sha256 = {};  ///< hexadecimal digits
  std::string md5_base64 = {};             ///< empty: not known
};

/// Stores all bytes of `source` at `path` if they are what is expected.
/// @param name the address without its secrets, for messages and the log
/// @throws DataError another size or hash; ResourceError (disk); what `source` throws
void store_fetched(const ByteSource& source,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name);

struct RemoteFile {
  struct Content {
    ByteSource bytes;  ///< a transfer that is cut continues where it was
    ExpectedFile expected = {};
  };

  std::function<std::string()> name;  ///< the address without its secrets
  /// @throws NetworkError, ConfigError, DataError; its source too, and StoppedError
  std::function<Content()> open;
  /// Looks for the login that it is fetched with, without the network. @throws ConfigError
  std::function<void()> check_login;
};

struct RemoteFileOptions {
  std::optional<std::string> sha256 = {};      ///< what it has to be
  std::optional<std::string> token_path = {};  ///< of the hub
  bool allow_plain_http = false;
};

/// Logins and what the environment says are looked up when they are needed.
/// @param url http(s)://, file:, s3://BUCKET/KEY, hf://OWNER/NAME[@REVISION]/FILE
/// @throws ConfigError for another, or plain http to another machine without leave
RemoteFile make_remote_file(const std::string& url, const RemoteFileOptions& options = {});

/// For people.
inline constexpr const char* kWandbLogin =
    "Set WANDB_API_KEY, or put the key into ~/.netrc (`wandb login` does so).";

/// Where the checkpoint of /tracker/load lies: a file of this machine, or one that is fetched. All ranks
/// have one; rank 0 alone fetches, and needs a login.
class CheckpointSource {
 public:
  /// @param data_path what has to be fetched is stored there as loaded_checkpoint.pth
  /// @param own_wandb_run the run of the W&B logger, "entity/project/run_id"; empty: it has no id yet
  /// @param fetches it needs a login too
  /// @throws ConfigError what is wrong as far as it can be told without the network
  CheckpointSource(const LoadConfig& config,
                   const std::string& data_path,
                   std::function<std::string()> own_wandb_run,
                   bool fetches = false);

  /// True if the file has to be fetched before it can be read.
  bool is_remote() const { return file_.has_value(); }
  /// Finds out whether it could be fetched, and fetches nothing. @throws NetworkError, ConfigError
  void check_access() const;
  /// Brings the file to path(), whole or not at all. Does nothing for a file of this machine.
  /// @throws NetworkError, ConfigError, DataError, ResourceError, StoppedError
  void fetch() const;

  /// The place for people and for records: an absolute path, or an address without its secrets.
  std::string name() const;
  /// The file on this machine, there or not (yet).
  const std::string& path() const { return path_; }
  /// True if it is used by auto-resumed runs only.
  bool only_auto_resume() const { return only_auto_resume_; }

 private:
  bool only_auto_resume_;
  std::string key_;  // of the config, for messages
  std::string path_;
  std::optional<RemoteFile> file_;  // none: a file of this machine
};

/// A file under its own name in a folder that goes with this object.
class FetchedFile {
 public:
  /// Fetches an address; a path stays as it is, and so does one behind "file:". @throws as RemoteFile
  explicit FetchedFile(const std::string& path_or_url);
  ~FetchedFile();
  FetchedFile(const FetchedFile&) = delete;
  FetchedFile& operator=(const FetchedFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::string folder_;  // empty: nothing was fetched
};

}  // namespace dalle2
