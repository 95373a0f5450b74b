// SPDX-License-Identifier: MIT
// The visitor that turns a struct into JSON, every field filled in.
#pragma once

#include "config/reading/json_text.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {

template <class T>
Json to_json(const T& value);

/// Collects the fields of one struct.
class Writer : public IgnoresRules {
 public:
  Json object = Json::object();

  template <class Member>
  void field(const char* key, Member& member, const char*, const Limits& = {}) {
    object[key] = to_json(member);
  }
  void required(const char* key, auto& member, const char* doc, const Limits& limits = {}) {
    if (!limits.other_given) field(key, member, doc, limits);
  }
};

template <class E>
Json enum_to_json(E value) {
  const std::string name = enum_names<E>[static_cast<size_t>(value)];
  return is_number_name(name) ? Json(std::stoll(name)) : Json(name);
}

inline Json transforms_to_json(const std::vector<TransformConfig>& transforms) {
  Json object = Json::object();
  for (TransformConfig transform : transforms) {
    Writer arguments;
    transform.fields(arguments);
    object[enum_names<TransformKind>[static_cast<size_t>(transform.kind)]] =
        arguments.object.empty() ? Json(true) : arguments.object;
  }
  return object;
}

template <class Variant>
Json variant_to_json(const Variant& value) {
  return std::visit(
      [](auto alternative) {
        Writer writer;
        writer.object[TagTraits<Variant>::key] = alternative.kTag;
        alternative.fields(writer);
        return writer.object;
      },
      value);
}

template <class T>
Json to_json(const T& value) {
  if constexpr (OptionalTraits<T>::is_optional) {
    return value ? to_json(*value) : Json(nullptr);
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return transforms_to_json(value);
  } else if constexpr (IsVector<T>::value) {
    Json list = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back(to_json<typename ValueOf<T>::Type>(value[i]));
    }
    return list;
  } else if constexpr (IsOneOrMany<T>::value) {
    return value.is_one() ? to_json<typename ValueOf<T>::Type>(value.at(0))
                          : to_json(value.values());
  } else if constexpr (IsVariant<T>::value) {
    return variant_to_json(value);
  } else if constexpr (std::is_enum_v<T>) {
    return enum_to_json(value);
  } else if constexpr (std::is_same_v<T, RawJson>) {
    return Json::parse(value.text);
  } else if constexpr (std::is_same_v<T, Colour>) {
    if (value == Colour{}) return "white";
    return value == Colour{{0, 0, 0}} ? Json("black") : Json(value.rgb);
  } else if constexpr (Reflected<T>) {
    Writer writer;
    T copy = value;
    copy.fields(writer);
    return writer.object;
  } else {
    return Json(value);
  }
}

}  // namespace dalle2
