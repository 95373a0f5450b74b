// SPDX-License-Identifier: MIT
// Addresses of what repositories of the Hugging Face hub hold.
#pragma once

#include <string>
#include <vector>

#include "net/http_stream.h"

namespace dalle2 {

/// hf://OWNER/NAME[@REVISION]/PATH, of a data set hf://datasets/OWNER/NAME[@REVISION]/PATH.
struct HubUrl {
  std::string repo;      ///< owner/name
  std::string revision;  ///< a branch, a tag or a commit
  std::string path;      ///< in the repository, no slash at its end
  bool is_dataset = false;

  std::string text() const;
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
