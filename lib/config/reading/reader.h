// SPDX-License-Identifier: MIT
// The visitor that fills a struct from JSON and collects every fault.
#pragma once

#include <algorithm>
#include <span>

#include "base/text.h"
#include "config/reading/coerce.h"
#include "config/reading/describe.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/text_rules.h"

namespace dalle2 {

/// Where a Reader puts what it finds.
struct ReadFindings {
  Faults faults;
  std::vector<Fault> unavailable;             ///< asked for, but not there yet
  std::span<const Placeholder> placeholders;  ///< of the kind of run, for the targets of savers
};

class Reader {
 public:
  explicit Reader(ReadFindings& findings) : findings_(findings), faults_(findings.faults) {}

  /// Reads `json`, which stands at `pointer`, into `out`; faults leave `out` as it was or in part
  /// read.
  template <class T>
  void read(const Json& json, const std::string& pointer, const Limits& limits, T& out) {
    if constexpr (OptionalTraits<T>::is_optional) {
      read_optional(json, pointer, limits, out);
    } else if constexpr (IsVariant<T>::value) {
      read_variant(json, pointer, out);
    } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
      read_transforms(json, pointer, out);
    } else if constexpr (IsVector<T>::value) {
      read_list(json, pointer, limits, out);
    } else if constexpr (IsOneOrMany<T>::value) {
      read_one_or_many(json, pointer, limits, out);
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(json, pointer, limits, out);
    } else if constexpr (Reflected<T>) {
      read_struct(json, pointer, out);
    } else {
      read_scalar(json, pointer, limits, out);
    }
  }

  /// Reads an object; `known_elsewhere` are keys that are not this struct's but no strangers.
  template <class T>
  void read_struct(const Json& json,
                   const std::string& pointer,
                   T& out,
                   const std::vector<std::string>& known_elsewhere = {});

 private:
  void read_scalar(const Json& json, const std::string& pointer, const Limits& limits, bool& out);
  void read_scalar(const Json& json,
                   const std::string& pointer,
                   const Limits& limits,
                   int64_t& out);
  void read_scalar(const Json& json, const std::string& pointer, const Limits& limits, double& out);
  void read_scalar(const Json& json,
                   const std::string& pointer,
                   const Limits& limits,
                   std::string& out);
  void read_scalar(const Json& json,
                   const std::string& pointer,
                   const Limits& limits,
                   RawJson& out);
  void read_transforms(const Json& json,
                       const std::string& pointer,
                       std::vector<TransformConfig>& out);
  void read_transform(const std::string& name,
                      const Json& json,
                      const std::string& pointer,
                      std::vector<TransformConfig>& out);
  /// Reports a key that no field has read.
  void unknown_key(const std::string& key,
                   const std::string& pointer,
                   const std::vector<std::string>& known,
                   UnknownKeys policy,
                   std::span<const MovedKey> moved);
  void wrong_type(const Json& json, const std::string& pointer, const std::string& expected);
  /// Checks the number of a list's entries.
  void check_count(size_t count, const std::string& pointer, const Limits& limits);
  /// Text for a tag that no alternative has.
  void unknown_tag(const Json& tag,
                   const std::string& pointer,
                   const std::string& noun,
                   const std::vector<std::string>& tags);

  template <class T>
  void read_optional(const Json& json,
                     const std::string& pointer,
                     const Limits& limits,
                     std::optional<T>& out) {
    if (json.is_null() || (limits.false_is_null_ && json.is_boolean() && !json.get<bool>())) {
      out.reset();
      return;
    }
    if constexpr (IsVariant<T>::value) {
      // `"load": {"load_from": null}` and `{}` load nothing.
      const auto tag = json.is_object() ? json.find(TagTraits<T>::key) : json.end();
      if (json.is_object() && (tag == json.end() || tag->is_null())) {
        out.reset();
        return;
      }
    }
    out.emplace(out.value_or(initial<T>()));
    read(json, pointer, limits, *out);
  }

  template <class T>
  static T initial() {
    if constexpr (IsOneOrMany<T>::value)
      return T(typename ValueOf<T>::Type{});
    else
      return T{};
  }

  template <class T>
  void read_list(const Json& json,
                 const std::string& pointer,
                 const Limits& limits,
                 std::vector<T>& out) {
    out.clear();
    if (!json.is_array()) {
      if (!limits.one_is_list_) return wrong_type(json, pointer, "a list");
      return append(json, pointer, limits, out);
    }
    check_count(json.size(), pointer, limits);
    for (size_t i = 0; i < json.size(); ++i) {
      append(json[i], pointer + "/" + std::to_string(i), limits, out);
    }
  }

  template <class T>
  void append(const Json& json,
              const std::string& pointer,
              const Limits& limits,
              std::vector<T>& out) {
    Limits entry = limits;
    entry.not_empty_ = false;
    T value = initial<T>();
    read(json, pointer, entry, value);
    out.push_back(std::move(value));
  }

  template <class T>
  void read_one_or_many(const Json& json,
                        const std::string& pointer,
                        const Limits& limits,
                        OneOrMany<T>& out) {
    if (json.is_array()) {
      std::vector<T> values;
      read_list(json, pointer, limits, values);
      out = OneOrMany<T>(std::move(values));
    } else if (json.is_object()) {
      wrong_type(json, pointer, expectation<OneOrMany<T>>(limits));
    } else {
      T value = initial<T>();
      read(json, pointer, limits, value);
      out = OneOrMany<T>(std::move(value));
    }
  }

  template <class E>
  void read_enum(const Json& json, const std::string& pointer, const Limits& limits, E& out) {
    const std::string word = json.is_string() ? json.get<std::string>() : json.dump();
    std::vector<std::string> names;
    for (size_t i = 0; i < enum_names<E>.size(); ++i) {
      names.emplace_back(enum_names<E>[i]);
      if (word == names.back() && (json.is_string() || is_number_name(word))) {
        out = static_cast<E>(i);
        return;
      }
    }
    std::string expected = expectation<E>(limits);
    wrong_word(json, pointer, expected, names);
  }

  void wrong_word(const Json& json,
                  const std::string& pointer,
                  const std::string& expected,
                  const std::vector<std::string>& words);

  template <class... Alternatives>
  void read_variant(const Json& json,
                    const std::string& pointer,
                    std::variant<Alternatives...>& out) {
    using Traits = TagTraits<std::variant<Alternatives...>>;
    if (!json.is_object()) return wrong_type(json, pointer, "an object");
    const auto found = json.find(Traits::key);
    const std::vector<std::string> tags = {Alternatives::kTag...};
    // Without a tag the first alternative is meant.
    const Json tag = found == json.end() ? Json(tags[0]) : *found;
    bool known = false;
    ((tag == Json(Alternatives::kTag)
          ? (known = true, read_alternative<Alternatives>(json, pointer, Traits::key, out))
          : void()),
     ...);
    if (!known) unknown_tag(tag, pointer + "/" + Traits::key, Traits::noun, tags);
  }

  template <class Alternative, class Variant>
  void read_alternative(const Json& json,
                        const std::string& pointer,
                        const char* key,
                        Variant& out) {
    Alternative value;
    read_struct(json, pointer, value, {key});
    out = std::move(value);
    if constexpr (requires { Alternative::kUnavailable; }) {
      findings_.unavailable.push_back(
          {pointer + "/" + key,
           fmt::format(
               "\"{}\" is not available yet: {}", Alternative::kTag, Alternative::kUnavailable)});
    }
  }

  ReadFindings& findings_;
  Faults& faults_;

  template <class T>
  friend class StructReader;
};

/// The fields of one object.
template <class T>
class StructReader {
 public:
  StructReader(Reader& reader,
               const Json& json,
               const std::string& pointer,
               std::vector<std::string> known)
      : reader_(reader),
        json_(json),
        pointer_(pointer),
        known_(std::move(known)),
        faults_before_(reader.faults_.errors().size()) {}

  template <class Member>
  void field(const char* key, Member& member, const char*, const Limits& limits = {}) {
    known_.emplace_back(key);
    const auto found = json_.find(key);
    if (found == json_.end()) return;
    const std::string pointer = pointer_ + "/" + key;
    if (!takes_null<Member> && found->is_null()) {
      reader_.faults_.error(
          pointer, fmt::format("must not be null; expected {}", expectation<Member>(limits)));
      return;
    }
    const Member before = member;
    reader_.read(*found, pointer, limits, member);
    if (limits.unavailable != nullptr && differs(before, member)) {
      reader_.findings_.unavailable.push_back(
          {pointer, fmt::format("\"{}\" is not available yet: {}", key, limits.unavailable)});
    }
  }

  template <class Member>
  void required(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    if (!json_.contains(key)) {
      known_.emplace_back(key);
      reader_.faults_.error(pointer_ + "/" + key, "required, but missing");
      return;
    }
    field(key, member, doc, limits);
  }

  /// A rule over several fields, asked only when each alone was right. `key` "" is the object
  /// itself.
  void check(bool holds, const std::string& key, const std::string& text) {
    if (!holds && fields_are_right()) reader_.faults_.error(at(key), text);
  }
  void rule(const std::string& key, const std::optional<std::string>& fault) {
    if (fault && fields_are_right()) reader_.faults_.error(at(key), *fault);
  }
  void note(bool when, const std::string& key, const std::string& text) {
    if (when && fields_are_right()) reader_.faults_.warn(at(key), text);
  }

  void report_unknown_keys() {
    UnknownKeys policy = UnknownKeys::warn;
    if constexpr (requires { T::kUnknownKeys; }) policy = T::kUnknownKeys;
    std::span<const MovedKey> moved;
    if constexpr (requires { T::kMovedKeys; }) moved = T::kMovedKeys;
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        reader_.unknown_key(key, pointer_, known_, policy, moved);
      }
    }
  }

 private:
  template <class Member>
  static bool differs(const Member& before, const Member& after) {
    if constexpr (OptionalTraits<Member>::is_optional)
      return after.has_value();
    else if constexpr (std::is_same_v<Member, bool>)
      return before != after;
    else
      return true;
  }
  // The fields read so far: the rules stand last.
  bool fields_are_right() {
    if (!fields_counted_) faults_at_rules_ = reader_.faults_.errors().size();
    fields_counted_ = true;
    return faults_at_rules_ == faults_before_;
  }
  std::string at(const std::string& key) const {
    return key.empty() ? pointer_ : pointer_ + "/" + key;
  }

  Reader& reader_;
  const Json& json_;
  const std::string& pointer_;
  std::vector<std::string> known_;
  size_t faults_before_;
  size_t faults_at_rules_ = 0;
  bool fields_counted_ = false;
};

template <class T>
void Reader::read_struct(const Json& json,
                         const std::string& pointer,
                         T& out,
                         const std::vector<std::string>& known_elsewhere) {
  if (!json.is_object()) return wrong_type(json, pointer, "an object");
  StructReader<T> fields(*this, json, pointer, known_elsewhere);
  out.fields(fields);
  fields.report_unknown_keys();
}

}  // namespace dalle2
