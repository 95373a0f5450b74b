// SPDX-License-Identifier: MIT
// Many urls in one: with ranges and lists in braces, as a shell writes them, or a place for a number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// The expansions of ranges {000..012}, {0..6..2}, {a..f} and lists {a,b}, nested ones too, one at
/// a time and in the shell's order: the last braces change first. Other braces stay as they are.
class BracePattern {
 public:
  explicit BracePattern(const std::string& text) : BracePattern(text, 0) {}

  /// How many texts; more than kMost count as kMost.
  uint64_t size() const { return size_; }
  /// @param index < size()
  std::string at(uint64_t index) const;

  static constexpr uint64_t kMost = 100'000'000;
  /// Lists within each other; the braces of deeper ones stay as they are.
  static constexpr int kMostLevels = 32;

 private:
  /// A text, a range, or a choice between patterns.
  struct Part {
    uint64_t size = 1;
    uint64_t stride = 1;  // how many texts until this part changes
    std::string text;
    bool is_range = false, letters = false;
    int64_t first = 0, step = 1;
    int width = 0;  // digits of a range of numbers
    std::vector<BracePattern> choices;
  };

  BracePattern(const std::string& text, int level);
  friend bool is_brace_range(const std::string& body);
  static bool read_range(const std::string& body, Part& part);
  void add_text(const std::string& text);
  void append(uint64_t index, std::string& out) const;

  std::vector<Part> parts_;
  uint64_t size_ = 1;
};

/// True for what stands between the braces of a range: "000..012", "0..6..2", "a..f".
bool is_brace_range(const std::string& body);

/// The patterns of a list `a::b`, with ${NAME} replaced by the environment variable WDS_NAME.
/// @param key of the config, or option, for messages
/// @throws ConfigError for an unset variable, a brace without its other half, or a range that is
/// none
std::vector<BracePattern> url_patterns(const std::string& text, const std::string& key);

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
