// SPDX-License-Identifier: MIT
// Servers that take files by HTTP PUT, stores that take them by S3's interface.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "base/python_format.h"
#include "net/digest.h"
#include "net/http_call.h"
#include "net/s3/s3_upload.h"
#include "net/url.h"
#include "tracker/places/destination.h"

namespace dalle2 {
namespace {

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

constexpr char kHidden = '#';  ///< after an address of which a part is not shown

/// Addresses that differ in what is hidden are different places.
std::string shown_of(const std::string& target) {
  const std::string shown = public_url(target);
  if (shown == target) return shown;
  return shown + kHidden + to_hex(sha256(target)).substr(0, 16);
}

/// A part of a template without placeholders, as it is sent.
std::optional<std::string> literal(const std::string& part) {
  const std::vector<std::string> literals = python_format_literals(part);
  if (literals.size() != 1) return std::nullopt;
  return literals.front();
}

/// What shown_of() shows of an address, with the login and the query of a template; none if it is not of
/// that host, or if placeholders are in either.
std::optional<std::string> with_secrets_of(const std::string& known, const std::string& shown) {
  const std::string plain = shown.substr(0, shown.find(kHidden));
  const size_t host = plain.find("://") + 3;
  const std::string authority = plain.substr(host, plain.find('/', host) - host);
  if (plain.substr(0, host) != known.substr(0, host)) return std::nullopt;
  const size_t after = host + authority.size();
  const bool has_login =
      known.substr(host, authority.size()) != authority ||
      (after < known.size() && std::string("/?#").find(known[after]) == std::string::npos);
  const size_t at = has_login ? known.find("@" + authority, host) : host;
  if (at == std::string::npos) return std::nullopt;
  const size_t end = std::min(known.find_first_of("?#", at), known.size());
  const auto login = literal(known.substr(host, has_login ? at + 1 - host : 0));
  const auto query = literal(known.substr(end));
  if (!login || !query) return std::nullopt;
  return plain.substr(0, host) + *login + plain.substr(host) + *query;
}

/// PUT of whole files. Without a url of its own each target is a whole address.
class UrlDestination : public Destination {
 public:
  explicit UrlDestination(const UrlSaveConfig& config)
      : url_(without_slash(config.url.value_or(""))), plain_http_(config.allow_plain_http) {
    if (!url_.empty()) check_scheme(url_);
    for (const auto* target : {&config.save_latest_to, &config.save_best_to}) {
      if (url_.empty() && *target) check_scheme(**target);
    }
  }

  std::string name() const override {
    if (!url_.empty()) return public_url(url_);
    return plain_http_ ? "whole addresses, http too" : "whole addresses";
  }
  std::string place_of(const std::string& target) const override {
    return url_.empty() ? target.substr(0, target.find(kHidden)) : Destination::place_of(target);
  }
  void know_template(const std::string& target) override {
    const std::lock_guard lock(mutex_);
    if (!url_.empty()) return;
    templates_.push_back(target);
    if (const auto whole = literal(target)) full_[shown_of(*whole)] = *whole;
  }
  std::string shown_target(const std::string& target) override {
    if (!url_.empty()) return target;
    const std::lock_guard lock(mutex_);
    const std::string shown = shown_of(target);
    full_[shown] = target;
    return shown;
  }
  std::string full_target(const std::string& shown) override {
    const std::lock_guard lock(mutex_);
    const auto found = full_.find(shown);
    if (found != full_.end()) return found->second;
    if (shown.find(kHidden) == std::string::npos) return shown;
    for (const std::string& known : templates_) {
      const std::optional<std::string> full = with_secrets_of(known, shown);
      if (full && shown_of(*full) == shown) return *full;
    }
    throw NetworkError(
        "its address has a login or a signature, which is not stored: a start of the run with that "
        "address in its config sends it");
  }

  /// A server of files need not know other requests, and a presigned address is good for one.
  void check_access(const HttpCallOptions& options) override {
    if (url_.empty()) return;
    HttpCall look = call("OPTIONS", url_ + "/");
    look.accepted = {400, 403, 404, 405, 409, 501};
    http_call(look, options);
  }

  void send(const FileToSend& file, const std::function<bool()>& cancelled) override {
    const HttpCallOptions options{.ends_at_stop = false, .cancelled = cancelled};
    const std::string address =
        url_.empty() ? file.target : url_ + "/" + uri_encode(file.target, /*keep_slash=*/true);
    HttpCall put = call("PUT", address);
    put.file = HttpFilePart{file.path};
    put.headers.emplace_back("Content-Type: application/octet-stream");
    if (!url_.empty()) {
      // WebDAV makes no folders by itself.
      if (http_call(accepting(put, {404, 409}), options).status() / 100 == 2) return;
      make_folders(address, options);
    }
    http_call(put, options);
  }

 private:
  void check_scheme(const std::string& url) const {
    if (!url.starts_with("http://") || plain_http_ || is_loopback_url(url)) return;
    throw ConfigError(
        "/tracker/save/url: {}: plain http to another machine is refused, because others could "
        "read the login and the file.\n  Give an https address, or set allow_plain_http.",
        public_url(url));
  }
  HttpCall call(const std::string& method, const std::string& url) const {
    HttpCall call{.method = method, .url = url};
    call.plain_http = plain_http_;
    call.netrc = true;
    call.explain = [](const HttpAnswer& answer) -> std::string {
      if (answer.status() == 401) {
        return "The server asks for a login: write one into ~/.netrc (chmod 600)";
      }
      if (answer.status() == 403) {
        return "The login may not write there, or the signature of the address has expired";
      }
      if (answer.status() == 405) return "The server takes no files at this address";
      return status_advice(answer.status());
    };
    return call;
  }
  /// Those that an address lies in, one by one. What cannot be made may be there: the next PUT tells.
  void make_folders(const std::string& address, const HttpCallOptions& options) const {
    const size_t path = address.find('/', address.find("://") + 3);
    for (size_t at = address.find('/', path + 1); at != std::string::npos;
         at = address.find('/', at + 1)) {
      http_call(accepting(call("MKCOL", address.substr(0, at)), {403, 405, 409, 501}), options);
    }
  }
  static HttpCall accepting(HttpCall call, std::vector<long> statuses) {
    call.accepted = std::move(statuses);
    return call;
  }

  std::string url_;
  bool plain_http_;
  std::mutex mutex_;
  std::map<std::string, std::string> full_;  // the addresses behind what may be shown of them
  std::vector<std::string> templates_;       // of the config
};

class S3Destination : public Destination {
 public:
  explicit S3Destination(const S3SaveConfig& config)
      : url_(without_slash(config.url)), plain_http_(config.allow_plain_http) {}

  std::string name() const override { return url_; }
  void check_access(const HttpCallOptions& options) override {
    s3_check_bucket(url_, {.http = options, .plain_http = plain_http_});
  }
  void send(const FileToSend& file, const std::function<bool()>& cancelled) override {
    s3_upload(file.path,
              url_ + "/" + file.target,
              {.http = {.ends_at_stop = false, .cancelled = cancelled}, .plain_http = plain_http_});
  }

 private:
  std::string url_;
  bool plain_http_;
};

}  // namespace

std::unique_ptr<Destination> make_url_destination(const UrlSaveConfig& config) {
  return std::make_unique<UrlDestination>(config);
}

std::unique_ptr<Destination> make_s3_destination(const S3SaveConfig& config) {
  return std::make_unique<S3Destination>(config);
}

}  // namespace dalle2
