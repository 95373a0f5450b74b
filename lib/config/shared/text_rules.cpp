// SPDX-License-Identifier: MIT
#include "config/shared/text_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/public_url.h"
#include "config/reading/json_text.h"

namespace dalle2 {

std::optional<std::string> template_fault(const std::string& text, const FormatFields& examples) {
  if (auto fault = python_format_fault(text, examples)) return fault;
  return folder_fault(text);
}

std::optional<std::string> folder_fault(const std::string& target) {
  if (("/" + target + "/").find("/../") == std::string::npos) return std::nullopt;
  return fmt::format("must not contain \"..\", got \"{}\"", public_url(target));
}

bool is_http_url(const std::string& text) {
  return text.starts_with("http://") || text.starts_with("https://");
}

std::optional<std::string> checkpoint_url_fault(const std::string& url) {
  const bool is_known = is_http_url(url) || url.starts_with("file:") || url.starts_with("s3://") ||
                        url.starts_with("hf://");
  if (is_known) return std::nullopt;
  return fmt::format(
      "expected an address that begins with https://, http://, file:, s3:// or hf://, got \"{}\"{}",
      public_url(url),
      url.find(':') == std::string::npos
          ? "; for a file of this machine use \"load_from\": \"local\" with its file_path"
          : "");
}

std::optional<std::string> http_url_fault(const std::string& url) {
  if (!is_http_url(url)) {
    return fmt::format("expected an address that begins with https:// or http://, got \"{}\"",
                       public_url(url));
  }
  if (url.find('#') == std::string::npos) return std::nullopt;
  return fmt::format("must have no '#': names are appended to it, got one in \"{}\"",
                     public_url(url));
}

std::optional<std::string> s3_url_fault(const std::string& url) {
  const bool has_bucket = url.starts_with("s3://") && url.size() > 5 && url[5] != '/';
  if (has_bucket) return std::nullopt;
  return fmt::format("expected s3://BUCKET/FOLDER, got \"{}\"", public_url(url));
}

std::optional<std::string> hub_repo_fault(const std::string& repo) {
  if (is_hub_repo(repo)) return std::nullopt;
  return fmt::format("expected owner/name, of letters, digits, '-', '.' and '_', got \"{}\"",
                     public_url(repo));
}

std::optional<std::string> token_path_fault(const std::string& path) {
  const bool is_token = path.starts_with("hf_") && path.find('/') == std::string::npos &&
                        path.find('.') == std::string::npos && path.size() > 20;
  if (!is_token) return std::nullopt;
  return "looks like a token; expected the name of a file that holds one. A token does not belong "
         "into a config: give it as HF_TOKEN, and withdraw this one if others have seen the file";
}

std::optional<std::string> sha256_fault(const std::string& digits) {
  const bool is_right = digits.size() == 64 &&
                        digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (is_right) return std::nullopt;
  return "expected 64 hexadecimal digits, got " + shown(digits);
}

std::optional<std::string> device_fault(const std::string& name) {
  if (name == "cpu" || name == "cuda") return std::nullopt;
  const size_t digits = name.size() - std::min<size_t>(name.size(), 5);
  const bool is_numbered = name.starts_with("cuda:") && digits > 0 && digits <= 4;
  if (is_numbered && name.find_first_not_of("0123456789", 5) == std::string::npos)
    return std::nullopt;
  return "expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU with at most 4 digits, "
         "got " +
         shown(name);
}

}  // namespace dalle2
