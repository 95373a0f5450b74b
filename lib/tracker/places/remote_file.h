// SPDX-License-Identifier: MIT
// A file that is fetched before it is read: of a web server, a store, the Hugging Face hub.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "io/streams/stream.h"
#include "net/http_stream.h"
#include "net/wandb_api.h"

namespace dalle2 {

/// What a file has to be, as far as that is known.
struct ExpectedFile {
  std::optional<uint64_t> bytes = {};
  std::optional<std::string> sha256 = {};  ///< hexadecimal digits
  std::string md5_base64 = {};             ///< empty: not known
};

/// Stores all bytes of `source` at `path`, and compares them with what is expected before the file
/// is there.
/// @param name the address without its secrets, for messages and the log
/// @throws DataError another size or hash; ResourceError (disk); what `source` throws
void store_fetched(const ByteSource& source,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name);

/// The same for the body of a GET, which continues where it was cut.
void store_fetched(HttpGet request,
                   const std::string& path,
                   const ExpectedFile& expected,
                   const std::string& name);

class RemoteFile {
 public:
  virtual ~RemoteFile() = default;

  /// The address without its secrets.
  virtual std::string name() const = 0;
  /// Looks for the login that it is fetched with, without the network. @throws ConfigError
  virtual void check_login() const {}
  /// Finds out whether it could be fetched. @throws NetworkError, ConfigError, DataError
  virtual void check_access() const = 0;
  /// Stores it at `path`, whole or not at all. A transfer that is cut continues where it was; size and,
  /// where it is known, SHA-256 are compared.
  /// @throws NetworkError, ConfigError, DataError (another size or hash), ResourceError, StoppedError
  virtual void fetch(const std::string& path) const = 0;
};

struct RemoteFileOptions {
  std::optional<std::string> sha256 = {};      ///< what it has to be
  std::optional<std::string> token_path = {};  ///< of the hub
  bool allow_plain_http = false;
};

/// Logins and what the environment says are looked up when they are needed.
/// @param url http(s)://, file:, s3://BUCKET/KEY, hf://OWNER/NAME[@REVISION]/FILE
/// @throws ConfigError for another, or plain http to another machine without leave
std::unique_ptr<RemoteFile> make_remote_file(const std::string& url,
                                             const RemoteFileOptions& options = {});

/// The run that the W&B logger logs to, "entity/project/run_id"; none as long as it has no id.
using OwnWandbRun = std::function<std::optional<std::string>()>;

/// A file of a Weights & Biases run. @param may_come_later the run need not be known yet
/// @throws ConfigError it is none. What its functions throw: the environment of W&B is wrong (net/wandb_api.h)
std::unique_ptr<RemoteFile> make_wandb_file(OwnWandbRun run,
                                            const std::string& file,
                                            bool may_come_later);

/// For people.
inline constexpr const char* kWandbLogin =
    "Set WANDB_API_KEY, or put the key into ~/.netrc (`wandb login` does so).";

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
