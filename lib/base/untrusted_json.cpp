// SPDX-License-Identifier: MIT
#include "base/untrusted_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/public_url.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

constexpr size_t kMostTwice = 100;

/// Where a byte of a text stands, as editors count: "line 18, column 17".
std::string line_and_column(std::string_view text, size_t at) {
  const size_t line_begin = text.substr(0, at).rfind('\n') + 1;  // 0 if there is none
  return fmt::format("line {}, column {}",
                     std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1,
                     std::count_if(text.begin() + static_cast<ptrdiff_t>(line_begin),
                                   text.begin() + static_cast<ptrdiff_t>(at),
                                   begins_character) +
                         1);
}

/// Signs that pages, chats and word processors write in place of those of JSON.
constexpr std::string_view kOddSigns =
    "\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\uff02\u00a0\u202f\u3000\u2013\u2212\uff0c\uff1a";

/// What is wrong where the parser stopped, if a sign there only looks like one of JSON.
/// @param stop the last byte that was read @param otherwise what the parser says
std::string grammar_fault(std::string_view text, size_t stop, const std::string& otherwise) {
  size_t at = stop;
  while (at > 0 && !begins_character(text[at])) --at;
  size_t end = at + 1;
  while (end < text.size() && !begins_character(text[end])) ++end;
  const std::string_view sign = text.substr(at, end - at);
  if (sign.size() < 2 || kOddSigns.find(sign) == std::string_view::npos) return otherwise;
  return fmt::format("{}: got '{}', expected a plain sign: \", space, minus, comma or colon",
                     line_and_column(text, at),
                     sign);
}

/// Builds the value as the parser comes along. The library's own builder looks a key up in all keys
/// before it.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const JsonRules& rules, ParsedJson& out)
      : text_(text), rules_(rules), out_(out) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return fail("binary data"); }

  bool start_object(size_t) override { return enter(add(Json::object())); }
  bool start_array(size_t) override { return enter(add(Json::array())); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(std::string& name) override {
    Level& level = levels_.back();
    Json::object_t& object = level.value->get_ref<Json::object_t&>();
    const auto [place, is_new] = level.places.try_emplace(name, object.size());
    if (is_new && object.size() >= rules_.most_keys)
      return fail(fmt::format("an object with more than {} keys", rules_.most_keys));
    if (is_new) object.emplace_back(name, nullptr);
    level.key = std::move(name);
    level.has_key = true;
    level.place = place->second;
    if (!is_new && out_.twice.size() < kMostTwice) out_.twice.push_back(pointer());
    return true;
  }

  bool parse_error(size_t read, const std::string&, const Json::exception& error) override {
    if (std::string_view(error.what()).find("invalid string: surrogate") != std::string_view::npos)
      return fail("expected UTF-8, got an escape that is half of a surrogate pair");
    const size_t stop = std::min(read, text_.size()) - (read > 0 && !text_.empty() ? 1 : 0);
    // The parser may have stopped inside of a character: what is wrong is said of the whole text.
    const size_t foreign = first_foreign_byte(text_);
    if (foreign <= stop && foreign < text_.size()) {
      return fail(fmt::format("expected UTF-8, got the byte 0x{:02x} at {}",
                              static_cast<unsigned char>(text_[foreign]),
                              line_and_column(text_, foreign)));
    }
    out_.is_no_json = true;
    out_.fault = grammar_fault(text_, stop, "not valid JSON: " + json_error_text(error));
    return false;
  }

 private:
  /// An object or list that the parser is inside of.
  struct Level {
    Json* value = nullptr;
    std::unordered_map<std::string, size_t> places;  ///< of an object's keys
    std::string key;                                 ///< of an object, whose value is being read
    bool has_key = false;
    size_t place = 0;  ///< of `key`
  };

  std::string pointer() const {
    std::string pointer;
    for (const Level& level : levels_) {
      if (level.value->is_array()) {
        // What is inside of an entry is in the last, and else an entry is to come.
        const size_t inside = &level == &levels_.back() ? 0 : 1;
        pointer += "/" + std::to_string(level.value->size() - inside);
      } else if (level.has_key) {
        pointer += "/" + pointer_part(level.key);
      }  // else it is about a key
    }
    return pointer;
  }

  bool fail(const std::string& text) {
    const std::string where = pointer();
    out_.fault = where.empty() ? text : where + ": " + text;
    return false;
  }

  Json* add(Json value) {
    if (levels_.empty()) return &(out_.value = std::move(value));
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    Json::object_t& object = level.value->get_ref<Json::object_t&>();
    const auto slot = object.begin() + static_cast<ptrdiff_t>(level.place);
    level.has_key = value.is_structured();
    return &(slot->second = std::move(value));
  }

  bool enter(Json* value) {
    if (levels_.size() >= rules_.most_levels) {
      levels_.clear();  // the pointer would be as long
      return fail(
          fmt::format("lists and objects nested more than {} levels deep", rules_.most_levels));
    }
    levels_.push_back({value, {}, "", false, 0});
    return true;
  }

  bool leave() {
    levels_.pop_back();
    if (!levels_.empty()) levels_.back().has_key = false;
    return true;
  }

  const std::string_view text_;
  const JsonRules& rules_;
  ParsedJson& out_;
  std::vector<Level> levels_;
};

}  // namespace

ParsedJson parse_untrusted_json(std::string_view text, const JsonRules& rules) {
  ParsedJson parsed;
  // The parser takes a NUL for the end.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    parsed.is_no_json = true;
    parsed.fault = fmt::format("not valid JSON: a NUL byte at offset {}", nul);
    return parsed;
  }
  Builder builder(text, rules, parsed);
  const bool right = Json::sax_parse(text.begin(),
                                     text.end(),
                                     &builder,
                                     Json::input_format_t::json,
                                     /*strict=*/true,
                                     rules.comments);
  if (!right) parsed.value = nullptr;
  return parsed;
}

Json parse_untrusted_object(std::string_view text, const JsonRules& rules) {
  Json value = parse_untrusted_json(text, rules).value;
  return value.is_object() ? value : Json();
}

std::string json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_error_text(const Json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 3, column 5: ..."
  std::string text = error.what();
  if (const size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  // What was read last may be a url or a command with its secrets, cut where nobody can tell.
  constexpr std::string_view kRead = "; last read: ";
  constexpr size_t kMostRead = 20;
  const size_t read = text.find(kRead);
  if (read != std::string::npos && (text.find_first_of(":\\", read + kRead.size()) != text.npos ||
                                    text.size() > read + kRead.size() + kMostRead)) {
    text.erase(read);
  }
  constexpr size_t kMost = 300;
  if (text.size() > kMost) return as_utf8(text.substr(0, kMost)) + "...";
  const bool is_after_comma = text.ends_with("unexpected '}'; expected string literal") ||
                              text.ends_with("unexpected ']'; expected '[', '{', or a literal");
  return is_after_comma ? text + "; remove the comma, if one stands before it" : text;
}

std::string pointer_part(const std::string& key) {
  std::string part;
  for (const char c : key) part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return part;
}

bool take_out_secrets(Json& value) {
  bool changed = false;
  if (value.is_structured()) {
    for (auto& part : value) changed = take_out_secrets(part) || changed;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    std::string shown = public_url(text);
    const char* place = "{}";
    if (text.find(place) != std::string::npos && shown.find(place) == std::string::npos)
      shown += place;
    changed = shown != text;
    if (changed) value = shown;
  }
  return changed;
}

}  // namespace dalle2
