// SPDX-License-Identifier: MIT
// A config struct is declared once: `void fields(auto& f)` names each member with its doc line and
// its limits, the default is the member's initialiser. Visitors over it read, dump, document and
// describe.
//
//   struct SplitConfig {
//     double train = 0.75;
//     void fields(auto& f) { D2_FIELD(train, "Share of the shards to train on.", within(0, 1)); }
//   };
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/reading/types.h"

namespace dalle2 {

/// What a value has to satisfy beyond its type. In lists the numeric limits hold for each entry.
struct Limits {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   ///< `low` itself is not allowed
  bool high_open = false;  ///< `high` itself is not allowed
  bool not_empty_ = false;
  const char* empty_text = nullptr;  ///< what to say of an empty list
  size_t most = 0;                   ///< entries of a list at most; 0 is any
  size_t least = 0;                  ///< entries of a list at least
  bool false_is_null_ = false;       ///< false switches an optional value off, as null does
  bool one_is_list_ = false;         ///< a single value is a list of one
  bool fetched_ =
      false;  ///< a path of this machine, `http(s):`, `s3:`, `hf:` or `pipe:`; others cannot be read
  size_t numbered_words = 0;           ///< an integer below it stands for the word of that index
  const char* unknown_word = nullptr;  ///< the fault of another word, `{}` takes it; else a default
  std::vector<std::string> words;      ///< the values that a string may have
  bool placeholders_ = false;       ///< a target that may hold the placeholders of the kind of run
  const char* other_key = nullptr;  ///< a required value gives way to the value of this key ...
  bool other_given = false;         ///< ... which is given
  /// What is wrong with a text, for forms that the rest cannot say; nothing if it is right.
  std::optional<std::string> (*text_fault_)(const std::string&) = nullptr;

  Limits up_to(double value) && { return high = value, std::move(*this); }
  Limits below(double value) && { return high = value, high_open = true, std::move(*this); }
  Limits entries(size_t count) && { return least = most = count, std::move(*this); }
  Limits entries(size_t at_least, size_t at_most) && {
    return least = at_least, most = at_most, std::move(*this);
  }
  Limits not_empty() && { return not_empty_ = true, std::move(*this); }
  Limits not_empty(const char* text) && {
    return not_empty_ = true, empty_text = text, std::move(*this);
  }
  Limits fetched() && { return fetched_ = true, std::move(*this); }
  Limits one_is_list() && { return one_is_list_ = true, std::move(*this); }
  Limits index_is_word(size_t count) && { return numbered_words = count, std::move(*this); }
  Limits placeholders() && { return placeholders_ = true, std::move(*this); }
  Limits or_else(const char* key, bool is_given) && {
    return other_key = key, other_given = is_given, std::move(*this);
  }
  Limits unknown(const char* text) && { return unknown_word = text, std::move(*this); }
};

inline Limits any_value() {
  return {};
}
inline Limits at_least(double value) {
  Limits limits;
  limits.low = value;
  return limits;
}
inline Limits above(double value) {
  Limits limits = at_least(value);
  limits.low_open = true;
  return limits;
}
inline Limits within(double low, double high) {
  return at_least(low).up_to(high);
}
inline Limits not_empty() {
  return Limits{}.not_empty();
}
inline Limits one_of(std::vector<std::string> words) {
  Limits limits;
  limits.words = std::move(words);
  return limits;
}
/// A text in which `fault` finds nothing wrong.
inline Limits text_without(std::optional<std::string> (*fault)(const std::string&)) {
  Limits limits = not_empty();
  limits.text_fault_ = fault;
  return limits;
}
/// A path, or false or null for none.
inline Limits path_or_off(std::optional<std::string> (*fault)(const std::string&) = nullptr) {
  Limits limits = text_without(fault);
  limits.false_is_null_ = true;
  return limits;
}

/// What becomes of a key that a section does not know. One near a known key is an error in any
/// case.
enum class UnknownKeys { warn, fatal };

/// A JSON object that is passed on as it is.
struct RawJson {
  std::string text;
  bool operator==(const RawJson&) const = default;
};

/// Names a member for every visitor; the JSON key is the member's name.
#define D2_FIELD(member, ...) f.field(#member, member, __VA_ARGS__)
/// The same for a member without a default.
#define D2_REQUIRED(member, ...) f.required(#member, member, __VA_ARGS__)

/// A key that other kinds have and this one has not: an error, with this text.
struct RefusedKey {
  const char* key;
  const char* text;
};

/// A visitor that only looks at the fields.
struct IgnoresRules {
  void check(bool, const std::string&, const std::string&) {}
  void rule(const std::string&, const std::optional<std::string>&) {}
  void note(bool, const std::string&, const std::string&) {}
};

struct FieldsProbe {};
/// A struct that declares its members with `fields`.
template <class T>
concept Reflected = requires(T& value, FieldsProbe& probe) {
  value.fields(probe);
};

/// How the alternatives of a std::variant are told apart: by the tag at `key` of the object; specialised
/// beside each variant.
template <class Variant>
struct TagTraits;

}  // namespace dalle2
