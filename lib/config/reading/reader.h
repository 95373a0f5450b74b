// SPDX-License-Identifier: MIT
// The visitor that fills a struct from JSON and collects every fault.
#pragma once

#include <algorithm>
#include <span>

#include "base/text.h"
#include "config/reading/json_text.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/text_rules.h"

namespace dalle2 {

/// Where a Reader puts what it finds.
struct ReadFindings {
  Faults faults;
  std::vector<Fault> unavailable;  ///< asked for, and cannot be had
  FormatFields placeholders;       ///< of the kind of run, for the targets of savers; empty: any
  std::vector<std::string> overridden;  ///< pointers that `--set` wrote: they must have a use
  Json defaults;                        ///< a config of this kind: says where a key belongs
};

/// A value, where it stands, and what it has to satisfy.
struct ValueAt {
  const Json& json;
  const std::string& pointer;
  const Limits& limits;
};

class Reader {
 public:
  explicit Reader(ReadFindings& findings) : findings_(findings), faults_(findings.faults) {}

  /// Reads a value into `out`; faults leave `out` as it was or in part read.
  template <class T>
  void read(const ValueAt& at, T& out) {
    if constexpr (OptionalTraits<T>::is_optional) {
      read_optional(at, out);
    } else if constexpr (is_of<T, std::variant>) {
      read_variant(at, out);
    } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
      read_transforms(at.json, at.pointer, out);
    } else if constexpr (is_of<T, std::vector>) {
      read_list(at, out);
    } else if constexpr (is_of<T, OneOrMany>) {
      read_one_or_many(at, out);
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(at, out);
    } else if constexpr (Reflected<T>) {
      read_struct(at.json, at.pointer, out);
    } else {
      read_scalar(at, out);
    }
  }

  /// Reads an object; `known_elsewhere` are keys that are not this struct's but no strangers.
  template <class T>
  void read_struct(const Json& json,
                   const std::string& pointer,
                   T& out,
                   const std::vector<std::string>& known_elsewhere = {});

 private:
  void read_scalar(const ValueAt& at, bool& out);
  void read_scalar(const ValueAt& at, int64_t& out);
  void read_scalar(const ValueAt& at, double& out);
  void read_scalar(const ValueAt& at, std::string& out);
  void read_scalar(const ValueAt& at, RawJson& out);
  void read_scalar(const ValueAt& at, Colour& out);
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
                   std::span<const RefusedKey> refused);
  void wrong_type(const Json& json, const std::string& pointer, const std::string& expected);
  void check_count(size_t count, const std::string& pointer, const Limits& limits);
  /// Text for a tag that no alternative has.
  void unknown_tag(const Json& tag,
                   const std::string& pointer,
                   const std::string& noun,
                   const std::vector<std::string>& tags);

  void wrong_word(const ValueAt& at,
                  const std::string& expected,
                  const std::vector<std::string>& words);

  template <class T>
  void read_optional(const ValueAt& at, std::optional<T>& out) {
    const Json& json = at.json;
    bool is_none =
        json.is_null() || (at.limits.false_is_null_ && json.is_boolean() && !json.get<bool>());
    if constexpr (is_of<T, std::variant>) {
      // `"load": {"load_from": null}` and `{}` load nothing.
      const auto tag = json.is_object() ? json.find(TagTraits<T>::key) : json.end();
      is_none |= json.is_object() && (tag == json.end() || tag->is_null());
    }
    if (is_none) return out.reset();
    out.emplace(out.value_or(initial<T>()));
    read(at, *out);
  }

  template <class T>
  static T initial() {
    if constexpr (is_of<T, OneOrMany>)
      return T(typename T::value_type{});
    else
      return T();
  }

  template <class T>
  void read_list(const ValueAt& at, std::vector<T>& out) {
    out.clear();
    if (!at.json.is_array()) {
      if (!at.limits.one_is_list_) return wrong_type(at.json, at.pointer, "a list");
      return append(at, out);
    }
    check_count(at.json.size(), at.pointer, at.limits);
    for (size_t i = 0; i < at.json.size(); ++i) {
      append({at.json[i], at.pointer + "/" + std::to_string(i), at.limits}, out);
    }
  }

  template <class T>
  void append(const ValueAt& at, std::vector<T>& out) {
    Limits entry = at.limits;
    entry.not_empty_ = false;
    T value = initial<T>();
    read({at.json, at.pointer, entry}, value);
    out.push_back(std::move(value));
  }

  template <class T>
  void read_one_or_many(const ValueAt& at, OneOrMany<T>& out) {
    if (at.json.is_array()) {
      std::vector<T> values;
      read_list(at, values);
      out = OneOrMany<T>(std::move(values));
    } else if (at.json.is_object() && !is_of<T, std::variant>) {
      wrong_type(at.json, at.pointer, expectation<OneOrMany<T>>(at.limits));
    } else {
      T value = initial<T>();
      read(at, value);
      out = OneOrMany<T>(std::move(value));
    }
  }

  template <class E>
  void read_enum(const ValueAt& at, E& out) {
    const std::string word = at.json.is_string() ? at.json.get<std::string>() : at.json.dump();
    std::vector<std::string> names;
    for (size_t i = 0; i < enum_names<E>.size(); ++i) {
      names.emplace_back(enum_names<E>[i]);
      if (word == names.back() && (at.json.is_string() || is_number_name(word))) {
        out = static_cast<E>(i);
        return;
      }
    }
    wrong_word(at, expectation<E>(at.limits), names);
  }

  template <class... Alternatives>
  void read_variant(const ValueAt& at, std::variant<Alternatives...>& out) {
    using Variant = std::variant<Alternatives...>;
    using Traits = TagTraits<Variant>;
    if (!at.json.is_object()) return wrong_type(at.json, at.pointer, "an object");
    const auto found = at.json.find(Traits::key);
    const std::vector<std::string> tags = {Alternatives::kTag...};
    // Without a tag the first alternative is meant.
    const Json tag = found == at.json.end() ? Json(tags[0]) : *found;
    const auto read_if = [&]<class Alternative>(Alternative value) {
      if (tag != Json(Alternative::kTag)) return false;
      read_struct(at.json, at.pointer, value, {Traits::key});
      out = std::move(value);
      return true;
    };
    if (!(read_if(Alternatives{}) || ...))
      unknown_tag(tag, at.pointer + "/" + Traits::key, Traits::noun, tags);
  }

  ReadFindings& findings_;
  Faults& faults_;

  template <class T>
  friend class StructReader;
};

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
    reader_.read({*found, pointer, limits}, member);
  }

  template <class Member>
  void required(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    const bool is_given = json_.contains(key);
    if (is_given && !limits.other_given) return field(key, member, doc, limits);
    known_.emplace_back(key);
    if (is_given) {
      reader_.faults_.error(
          pointer_ + "/" + key,
          fmt::format("has no place beside {}: give one of the two", limits.other_key));
    } else if (!limits.other_given) {
      reader_.faults_.error(pointer_ + "/" + key, "required, but missing");
    }
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
    std::span<const RefusedKey> refused;
    if constexpr (requires { T::kRefusedKeys; }) refused = T::kRefusedKeys;
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(known_, key) == known_.end()) {
        reader_.unknown_key(key, pointer_, known_, policy, refused);
      }
    }
  }

 private:
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
