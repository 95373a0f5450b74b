// SPDX-License-Identifier: MIT
// Many urls in one: with ranges and lists in braces, as a shell writes them, or a place for a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// Urls that one text may stand for: all are held in memory.
inline constexpr uint64_t kMostUrls = 10'000'000;

/// Urls from one string, as webdataset reads it: `a::b` lists, ${NAME} from the environment variable
/// WDS_NAME, and ranges {000..012}, {0..6..2}, {a..f} and lists {a,b} in braces, nested ones too.
/// @param key of the config, or option, for messages
/// @throws ConfigError for an unset variable, a brace without its other half, a range that is none, or
/// more than `most` urls
std::vector<std::string> expand_urls(const std::string& text,
                                     const std::string& key,
                                     uint64_t most = kMostUrls);

/// For messages: the first address of these texts, which may be lists `a::b`, without secrets, and how many
/// more there are.
std::string short_shards(const std::vector<std::string>& texts);

/// A url cut at its only placeholder {}; {{ and }} are braces.
struct UrlTemplate {
  std::string before, after;
  int64_t width = 0;  ///< digits at least

  std::string with(int64_t number) const;
};

/// @param key of the config, for messages
/// @throws ConfigError without a placeholder, or for another one
UrlTemplate parse_url_template(const std::string& text, int64_t width, const std::string& key);

/// The numbers for which a file of the template exists, ascending, by listing its folder, local or
/// of S3; none for a place that cannot be listed. @throws NetworkError
std::optional<std::vector<int64_t>> existing_numbers(const UrlTemplate& url);

}  // namespace dalle2
