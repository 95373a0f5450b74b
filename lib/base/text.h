// SPDX-License-Identifier: MIT
// Text for people: near misses, counts, sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

/// Edits (insert, delete, replace, swap of neighbours) between two words.
int edit_distance(const std::string& a, const std::string& b);

/// The candidate nearest to `word`, if near enough for `word` to be a typo of it; upper and lower
/// case count as equal.
std::optional<std::string> nearest_word(const std::string& word,
                                        const std::vector<std::string>& candidates);

/// A to Z as small letters, other bytes as they are.
std::string lower_case(std::string_view text);

/// `text` with `to` in the place of each `from`, which is not empty.
std::string replaced(std::string text, std::string_view from, std::string_view to);

/// Lines of a message below another, the first 15 and how many more: "\n    a\n    b".
std::string indented_list(const std::vector<std::string>& lines);

/// 1234567 -> "1,234,567".
std::string with_commas(int64_t number);

/// "1 shard", "2,000 shards". @param many the plural, if it is not formed with an s
std::string counted(int64_t count, const std::string& one, const std::string& many = "");

/// The number that 1 to 18 digits stand for; none for another text.
std::optional<int64_t> number_of_digits(const std::string& text);

/// A value for people, with at most `digits` significant digits: 0.3065, 1.98e-3, 108.2, "12,346".
std::string short_number(double value, int digits = 4);

/// [2, 3, 64] of a tensor's extents.
std::string shape_text(std::span<const int64_t> shape);

/// 123456789 bytes -> "117.7 MiB".
std::string human_bytes(uint64_t bytes);

/// 75.4 s -> "1:15", 3700 s -> "1:01:40"; "-:--" for NaN and infinity, "0:00" for negative times.
std::string human_duration(double seconds);

}  // namespace dalle2
