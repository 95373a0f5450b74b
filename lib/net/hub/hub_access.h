// SPDX-License-Identifier: MIT
// Who we are to the Hugging Face hub and where it is: the environment and the files of its tools.
#pragma once

#include <optional>
#include <string>

namespace dalle2 {

struct HubAccess {
  std::string endpoint;  ///< "https://huggingface.co" or HF_ENDPOINT, without a slash at its end
  std::string token;     ///< empty: anonymous
  std::string source;    ///< of the token, for messages
  bool plain_http = false;
};

/// Token: HF_TOKEN (HUGGING_FACE_HUB_TOKEN), else the file `token_path`, else the file that
/// `hf auth login` writes: HF_TOKEN_PATH, HF_HOME/token, XDG_CACHE_HOME/huggingface/token.
/// @param plain_http an endpoint of another machine may be http
/// @throws ConfigError `token_path` cannot be read or holds no token, HF_ENDPOINT is no address, or
/// is plain http without leave
HubAccess find_hub_access(const std::optional<std::string>& token_path, bool plain_http);

}  // namespace dalle2
