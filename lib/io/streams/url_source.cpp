// SPDX-License-Identifier: MIT
#include "io/streams/url_source.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "io/streams/command_source.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"

namespace dalle2 {

bool is_local_url(const std::string& url) {
  if (url.starts_with("file:")) return true;
  if (url.starts_with("pipe:")) return false;
  return url.find("://") == std::string::npos;
}

std::string local_path(const std::string& url) {
  if (url.starts_with("file://")) return url.substr(7);
  if (url.starts_with("file:")) return url.substr(5);
  return url;
}

std::string url_file_name(const std::string& url) {
  const bool is_path = url.find("://") == std::string::npos;
  const std::string path = is_path ? url : url.substr(0, url.find_first_of("?#"));
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::optional<HttpGet> remote_request(const std::string& url) {
  if (url.starts_with("s3://")) return s3_request(url);
  if (is_hub_url(url)) return hub_request(url);
  if (url.starts_with("http://") || url.starts_with("https://")) return HttpGet{.url = url};
  return std::nullopt;
}

ByteSource open_source(const std::string& url, const SourceOptions& options) {
  if (url.starts_with("pipe:")) {
    if (!options.allow_pipe) {
      throw ConfigError(
          "{}: this is a command, which would run on this machine with your rights.\n"
          "  If you trust it: write \"allow_pipe\": true into the \"data\" of the config file, or "
          "give --allow-pipe where the url is an argument.",
          public_url(url));
    }
    return command_source(url.substr(5), options.offset, options.http.cancelled);
  }
  if (std::optional<HttpGet> request = remote_request(url)) {
    auto stream = std::make_shared<HttpStream>(
        *std::move(request), options.http, static_cast<int64_t>(options.offset));
    return [stream](char* buffer, size_t capacity) { return stream->read(buffer, capacity); };
  }
  if (!is_local_url(url)) {
    throw ConfigError(
        "{}: only files, http://, https://, s3://, hf:// and pipe:COMMAND can be read.\n"
        "  Use a command that writes the file, for example \"pipe:gsutil cat "
        "gs://BUCKET/{{}}.tar\".",
        public_url(url));
  }
  return file_source(local_path(url), options.offset);
}

}  // namespace dalle2
