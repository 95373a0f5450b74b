// SPDX-License-Identifier: MIT
// The type of a field in words, for messages and for docs/config.md.
#pragma once

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};
template <class T>
struct IsOneOrMany : std::false_type {};
template <class T>
struct IsOneOrMany<OneOrMany<T>> : std::true_type {};
template <class T>
struct IsVariant : std::false_type {};
template <class... T>
struct IsVariant<std::variant<T...>> : std::true_type {};
template <class T>
struct ValueOf;
template <class T>
struct ValueOf<std::vector<T>> {
  using Type = T;
};
template <class T>
struct ValueOf<OneOrMany<T>> {
  using Type = T;
};

/// Whether null is a value of T.
template <class T>
inline constexpr bool takes_null = OptionalTraits<T>::is_optional;
template <class T>
inline constexpr bool takes_null<OneOrMany<T>> = OptionalTraits<T>::is_optional;

/// "64" is the number 64 in JSON.
inline bool is_number_name(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

/// The names of E as JSON: `"l1" "l2"`.
template <class E>
std::string enum_list() {
  std::string text;
  for (const char* name : enum_names<E>) {
    text += text.empty() ? "" : " ";
    text += is_number_name(name) ? name : fmt::format("\"{}\"", name);
  }
  return text;
}

inline std::string word_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += fmt::format("{}\"{}\"", text.empty() ? "" : " ", word);
  }
  return text;
}

/// What a value of T has to be: "an integer", "one of "l1" "l2"", "a list".
template <class T>
std::string expectation(const Limits& limits) {
  if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, int64_t>)
    return "an integer";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::string>) {
    if (!limits.words.empty()) return "one of " + word_list(limits.words);
    return limits.false_is_null_ ? "a path, or false or null for none" : "a string";
  } else if constexpr (std::is_same_v<T, Colour>)
    return "\"white\", \"black\" or a list of three integers from 0 to 255";
  else if constexpr (std::is_enum_v<T>)
    return "one of " + enum_list<T>();
  else if constexpr (IsVector<T>::value)
    return "a list";
  else if constexpr (IsOneOrMany<T>::value)
    return fmt::format("{} or a list", expectation<typename ValueOf<T>::Type>(limits));
  else if constexpr (OptionalTraits<T>::is_optional)
    return expectation<typename OptionalTraits<T>::Value>(limits);
  else
    return "an object";
}

}  // namespace dalle2
