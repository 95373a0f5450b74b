// SPDX-License-Identifier: MIT
// JSON that others wrote: configs, logs, marks of earlier runs. json.hpp is slow to compile, so few
// files include this one.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

/// Keeps the order of the keys.
using Json = nlohmann::ordered_json;

struct JsonRules {
  size_t most_levels = 100;      ///< of lists and objects within each other
  size_t most_keys = 1'000'000;  ///< of one object
  bool comments = false;         ///< // and /* */ are skipped
};

struct ParsedJson {
  Json value;         ///< null if there is a fault
  std::string fault;  ///< what is wrong, with line and column or the JSON pointer; empty if nothing
  bool is_no_json = false;         ///< the fault is one of grammar: it may be text of another kind
  std::vector<std::string> twice;  ///< pointers of keys that an object has twice, 100 at
                                   ///< most; the last value counts

  bool is_right() const { return fault.empty(); }
};

/// Parses all of `text` in a time that grows with its length, and in memory of at most some 100
/// bytes for each of its bytes. Text has to be UTF-8, and escapes of surrogates come in pairs.
/// Throws nothing: a caller walks what it gets without fear for its stack.
ParsedJson parse_untrusted_json(std::string_view text, const JsonRules& rules = {});

/// The object in `text`; null if it is something else or wrong.
Json parse_untrusted_object(std::string_view text, const JsonRules& rules = {});

/// One line. Bytes that are not UTF-8 (a caption's) become replacement characters.
std::string json_line(const Json& value);

/// What the library says, without its name in front.
std::string json_error_text(const Json::exception& error);

/// `key` as a part of a JSON pointer: "~" and "/" escaped.
std::string pointer_part(const std::string& key);

/// Every text in `value` as public_url() shows it, but for the place of a shard's number ("{}"),
/// which is not secret, and without which a config could not be read again.
/// @return true if something was taken out
bool take_out_secrets(Json& value);

}  // namespace dalle2
