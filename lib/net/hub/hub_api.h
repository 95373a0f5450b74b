// SPDX-License-Identifier: MIT
// Repositories of models on the Hugging Face hub, by its HTTP interface
// (https://huggingface.co/docs/hub/api; Git LFS: github.com/git-lfs/git-lfs, docs/api).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "net/http_call.h"

namespace dalle2 {

/// Who we are to the hub and where it is: the environment and the files of its tools.
struct HubAccess {
  std::string endpoint;     ///< "https://huggingface.co" or HF_ENDPOINT, without a slash at its end
  std::string token = {};   ///< empty: anonymous
  std::string source = {};  ///< of the token, for messages
  bool plain_http = false;
};

/// Token: HF_TOKEN (HUGGING_FACE_HUB_TOKEN), else the file `token_path`, else the file that
/// `hf auth login` writes: HF_TOKEN_PATH, HF_HOME/token, XDG_CACHE_HOME/huggingface/token.
/// @param plain_http an endpoint of another machine may be http
/// @throws ConfigError `token_path` or HF_ENDPOINT cannot be used
HubAccess find_hub_access(const std::optional<std::string>& token_path, bool plain_http);

struct HubFile {
  std::string path;
  int64_t size = 0;
  std::string sha256;   ///< of a large file (LFS); else empty
  std::string blob_id;  ///< Git's id (SHA-1)
};

struct HubUpload {
  std::string local_path, path;  ///< `path` in the repository
  std::string summary;           ///< of the commit
  bool only_if_absent = false;   ///< a file of that name stays as it is
};

/// hf://OWNER/NAME[@REVISION]/PATH, of a data set hf://datasets/OWNER/NAME[@REVISION]/PATH.
struct HubUrl {
  std::string repo;               ///< owner/name
  std::string revision = "main";  ///< a branch, a tag or a commit
  std::string path = {};          ///< in the repository, no slash at its end
  bool is_dataset = false;

  std::string text() const;
};

/// Of one repository. Tokens are sent to the endpoint alone.
class HubRepository {
 public:
  /// @param place its path does not count
  HubRepository(HubAccess access, HubUrl place, HttpOptions options = {})
      : access_(std::move(access)), place_(std::move(place)), options_(std::move(options)) {}
  void set_options(HttpOptions options) { options_ = std::move(options); }

  /// "https://huggingface.co/owner/name", with "@revision" for a branch other than main.
  std::string name() const;

  /// Asks who the token belongs to. @throws NetworkError there is none, it is refused, or may only read
  void check_token() const;
  /// Makes the repository and the branch, unless they are there. @throws NetworkError
  void create(bool is_private) const;
  /// Sends a file in a commit of its own; nothing is done if the branch has the same file already.
  /// What another has committed meanwhile is kept. @throws NetworkError, DataError
  /// @param notes of the parts of a large file that are there, with secret addresses: in memory
  void upload(const HubUpload& upload, UploadNotes& notes) const;
  /// What the branch holds at a path. @throws NetworkError
  std::optional<HubFile> find(const std::string& path) const;

  /// What is asked for to read a file as it is now: later commits change nothing under a transfer that was cut.
  struct Download {
    HttpGet request;
    HubFile file;
  };
  /// @throws NetworkError: no such repository, branch or file, or no leave to read it
  Download download(const std::string& path) const;
  /// The GET of a file, about which nothing is asked before.
  HttpGet request(const std::string& path) const;
  /// The id of the revision's latest commit. @throws NetworkError
  std::string commit() const;
  /// The files right in a folder. @throws NetworkError: there is none, or it has too many
  std::vector<HubFile> list(const std::string& folder) const;

 private:
  HttpCall call(const std::string& method, const std::string& path) const;
  HttpCall post(const std::string& path, const std::string& body, const std::string& type) const;
  std::string api(const std::string& what) const;
  std::string explain(const HttpAnswer& answer) const;

  HubAccess access_;
  HubUrl place_;
  HttpOptions options_;
};

inline bool is_hub_url(const std::string& url) {
  return url.starts_with("hf://");
}

enum class HubPath { kFile, kFolder };  ///< a folder may be the root of its repository

/// @throws ConfigError for other forms
HubUrl parse_hub_url(const std::string& url, HubPath path);

/// The GET of a file, with the login that find_hub_access() finds. @throws ConfigError
HttpGet hub_request(const std::string& url);

/// The urls of the files right in a folder, all of the commit that the revision names now.
/// @throws ConfigError, NetworkError
std::vector<HubUrl> hub_list(const std::string& url, const HttpOptions& options = {});

}  // namespace dalle2
