// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A config as it may be shown, stored and sent to somebody: of urls over http(s) and s3 without
/// user, password and query. Without such the text comes back as it is. @param json a config's text
std::string without_url_secrets(const std::string& json);

}  // namespace dalle2
