// SPDX-License-Identifier: MIT
// A url with one place for a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// A url cut at its only placeholder: {} or {0}, {:05d} (which sets its own width); {{ and }} are
/// braces.
struct UrlTemplate {
  std::string before, after;
  int64_t width = 0;  ///< digits at least

  std::string with(int64_t number) const;
};

/// @param width of a placeholder that has none of its own; @param key of the config, for messages
/// @throws ConfigError without a placeholder, or for another one
UrlTemplate parse_url_template(const std::string& text, int64_t width, const std::string& key);

/// True if the text has a placeholder for a number.
bool has_url_placeholder(const std::string& text);

/// The numbers for which a file of the template exists, ascending, by listing its folder, local or
/// of S3; none for a place that cannot be listed. @throws NetworkError
std::optional<std::vector<int64_t>> existing_numbers(const UrlTemplate& url);

}  // namespace dalle2
