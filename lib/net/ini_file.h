// SPDX-License-Identifier: MIT
// Ini files of other tools: [section] and "key = value".
#pragma once

#include <map>
#include <string>

namespace dalle2 {

using IniSection = std::map<std::string, std::string>;

/// The sections by name; none if there is no such file. Indented lines belong to the key before them:
/// "s3.endpoint_url". If a key occurs twice, the last value counts. Lines of # and ; are comments.
std::map<std::string, IniSection> read_ini(const std::string& path);

/// Empty if the section has no such key.
std::string value_of(const IniSection& section, const std::string& key);

}  // namespace dalle2
