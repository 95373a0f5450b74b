// SPDX-License-Identifier: MIT
// A call of a web service: any method, a body from memory or from a part of a file, the whole answer
// in memory. Downloads of files are HttpStream's.
//
//   HttpCall call{.method = "PUT", .url = href, .file = HttpFilePart{path, offset, size}};
//   const HttpAnswer answer = http_call(call);
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/untrusted_json.h"
#include "net/http_transfer.h"

namespace dalle2 {

/// Bytes of a file, sent as a body.
struct HttpFilePart {
  std::string path;
  int64_t offset = 0;
  std::optional<int64_t> size = {};  ///< none: to the end of the file
};

struct HttpAnswer {
  HttpResponse head;
  std::string body;
  std::string shown;  ///< the address in messages

  long status() const { return head.status; }
  std::string header(const std::string& name) const { return head.header(name); }
};

/// What is asked for.
struct HttpCall {
  std::string method = "GET";
  std::string url;
  std::string shown = {};                 ///< the url in messages; empty: public_url(url)
  std::vector<std::string> headers = {};  ///< "Name: value"; secrets among them stay on this host
  std::string body = {};
  std::optional<HttpFilePart> file = {};  ///< sent instead of `body`
  std::vector<long> accepted = {};        ///< statuses beside 2xx that are answers, not errors
  bool ends_at_other_host = false;        ///< a redirect to another origin is an answer too
  bool netrc = false;                     ///< a login for the host in ~/.netrc (NETRC) is used
  bool plain_http = false;                ///< http:// to another host than the loopback is allowed
  size_t most_bytes = size_t{64} << 20;   ///< of the answer
  /// What a refusal means and what to do, a sentence without its full stop. Null: by the status.
  std::function<std::string(const HttpAnswer& answer)> explain = nullptr;
};

struct HttpCallOptions {
  double stall_seconds = net_timeout_seconds();
  int attempts = net_attempts();  ///< 1 for a call that must not reach the server twice
  /// A server that asks for a longer pause (Retry-After) than this is not asked again.
  std::optional<double> most_asked_seconds = {};
  bool ends_at_stop = true;  ///< a stop signal ends the call with StoppedError
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  std::function<bool()> cancelled =
      nullptr;               ///< asked while waiting; true ends the call by an error
  bool says_retries = true;  ///< a warning in the log for each failed attempt
};

/// Sends a request and waits for the whole answer. A refused connection, a cut, a stall, 408, 425, 429
/// and 5xx are tried again after a growing pause (or the server's Retry-After), with the whole body.
/// Attempts and pauses together last at most about four stall times, and end at the deadline.
/// Certificates are always checked; plain http goes to the loopback only, unless allowed. Up to 10
/// redirects are followed. Another scheme, host or port gets no login: of the headers only those that
/// describe the content; and a redirect from https to http is refused.
/// @throws HttpStatusError for a status that is neither 2xx nor accepted; UnreachableError if no attempt
/// got an answer; NetworkError for any other failure, all with the address as it may be shown; StoppedError; DataError if the file cannot be
/// read; ConfigError for plain http
HttpAnswer http_call(const HttpCall& call, const HttpCallOptions& options = {});

/// "Authorization: Basic ..." for that login.
std::string basic_authorization(const std::string& user, const std::string& password);

/// Whether a url names this machine: localhost, 127.x.x.x or [::1].
bool is_loopback_url(const std::string& url);

/// The answer's body as JSON. @throws NetworkError if it is none
Json json_of(const HttpAnswer& answer);

/// Sends `content` (nothing if null) as application/json and reads the answer as JSON.
/// @throws as http_call() and json_of()
Json http_json(HttpCall call, const Json& content, const HttpCallOptions& options = {});

}  // namespace dalle2
