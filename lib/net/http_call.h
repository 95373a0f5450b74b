// SPDX-License-Identifier: MIT
// A call of a web service: any method, a body from memory or from a part of a file, the whole answer
// in memory. Downloads of files are HttpStream's.
//
//   HttpCall call{.method = "PUT", .url = href, .file = HttpFilePart{path, offset, size}};
//   const HttpAnswer answer = http_call(call);
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/untrusted_json.h"
#include "net/http_transfer.h"

namespace dalle2 {

/// Sends a request and waits for the whole answer. A refused connection, a cut, a stall, 408, 425, 429
/// and 5xx are tried again (HttpOptions), with the whole body. Plain http goes to the loopback only,
/// unless allowed. What holds for every transfer is said at HttpTransfer.
/// @throws HttpStatusError for a status that is neither 2xx nor accepted; UnreachableError if no attempt
/// got an answer in time; NetworkError for any other failure, all with the address as it may be shown;
/// StoppedError; DataError if the file cannot be read; ConfigError for plain http
HttpAnswer http_call(const HttpCall& call, const HttpOptions& options = {});

/// One attempt of a call, for a caller that looks around before the next one. @return none if there is an answer
std::optional<HttpFailure> http_attempt(const HttpCall& call,
                                        const HttpOptions& options,
                                        const HttpAttempts& attempts,
                                        HttpAnswer& answer);

/// Where an upload in parts keeps what it has sent, so that a later call with the same file goes on from
/// there: a JSON text of its own; empty: nothing is under way. Those of the hub are secret.
struct UploadNotes {
  std::string text = {};
  std::function<void(const std::string& text)> store = nullptr;  ///< null: for this call alone

  void keep(const std::string& now) {
    text = now;
    if (store) store(now);
  }
};

/// "Authorization: Basic ..." for that login.
std::string basic_authorization(const std::string& user, const std::string& password);

/// What a service says, for a message: "***" for each of our secrets in it, on one line, about
/// 200 bytes at most, without full stops at its end.
std::string service_words(std::string text, const std::vector<std::string>& secrets);

/// The answer's body as JSON. @throws NetworkError if it is none
Json json_of(const HttpAnswer& answer);

/// A value deep in an answer; null if something on the way to it is missing.
Json json_at(const Json& answer, const std::vector<std::string>& path);
/// The same of a text; `otherwise` if there is none.
std::string text_at(const Json& answer,
                    const std::vector<std::string>& path,
                    const std::string& otherwise = "");

/// Sends `content` (nothing if null) as application/json and reads the answer as JSON.
/// @throws as http_call() and json_of()
Json http_json(HttpCall call, const Json& content, const HttpOptions& options = {});

}  // namespace dalle2
