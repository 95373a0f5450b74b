// SPDX-License-Identifier: MIT
// Calls of web services that speak JSON.
#pragma once

#include "base/untrusted_json.h"
#include "net/http_call.h"

namespace dalle2 {

/// The answer's body as JSON. @throws NetworkError if it is none
Json json_of(const HttpAnswer& answer);

/// Sends `content` (nothing if null) as application/json and reads the answer as JSON.
/// @throws as http_call() and json_of()
Json http_json(HttpCall call, const Json& content, const HttpCallOptions& options = {});

}  // namespace dalle2
