// SPDX-License-Identifier: MIT
// The visitors that turn a struct into JSON, every field filled in, and into its JSON Schema 2020-12.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/reading/json_text.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {

template <class T>
Json to_json(const T& value);

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
  } else if constexpr (is_of<T, std::vector>) {
    Json list = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      list.push_back(to_json<typename T::value_type>(value[i]));
    }
    return list;
  } else if constexpr (is_of<T, OneOrMany>) {
    return value.is_one() ? to_json<typename T::value_type>(value.at(0)) : to_json(value.values());
  } else if constexpr (is_of<T, std::variant>) {
    return variant_to_json(value);
  } else if constexpr (std::is_enum_v<T>) {
    const std::string name = enum_names<T>[static_cast<size_t>(value)];
    return is_number_name(name) ? Json(std::stoll(name)) : Json(name);
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

namespace schema_detail {

template <class T>
Json struct_schema(T value);

inline void add_limits(Json& schema, const Limits& limits) {
  const auto number = [](double value) {
    return value == static_cast<double>(static_cast<int64_t>(value))
               ? Json(static_cast<int64_t>(value))
               : Json(value);
  };
  if (limits.low > -std::numeric_limits<double>::infinity()) {
    schema[limits.low_open ? "exclusiveMinimum" : "minimum"] = number(limits.low);
  }
  if (limits.high < std::numeric_limits<double>::infinity()) {
    schema[limits.high_open ? "exclusiveMaximum" : "maximum"] = number(limits.high);
  }
}

inline Json any_of(std::vector<Json> schemas) {
  return Json{{"anyOf", std::move(schemas)}};
}

inline Json transforms_schema() {
  Json properties = Json::object();
  for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
    TransformConfig transform;
    transform.kind = static_cast<TransformKind>(i);
    const Json arguments = struct_schema(transform);
    properties[enum_names<TransformKind>[i]] =
        arguments.contains("required")
            ? any_of({arguments, Json{{"const", false}}})
            : any_of({arguments, Json{{"type", "boolean"}}, Json{{"type", "null"}}});
  }
  return Json{{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
}

template <class Alternative, class Traits>
Json alternative_schema(bool tag_may_be_absent) {
  Json schema = struct_schema(Alternative{});
  Json properties = {{Traits::key, {{"const", Alternative::kTag}, {"description", Traits::doc}}}};
  properties.update(schema["properties"]);
  schema["properties"] = properties;
  if (tag_may_be_absent) return schema;
  Json required = {Traits::key};
  if (schema.contains("required")) {
    required.insert(required.end(), schema["required"].begin(), schema["required"].end());
  }
  schema["required"] = required;
  return schema;
}

template <class... Alternatives>
Json variant_schema(const std::variant<Alternatives...>&, bool optional) {
  using Traits = TagTraits<std::variant<Alternatives...>>;
  std::vector<Json> schemas;
  bool first = !optional;  // without a tag the first alternative is meant, or none if optional
  (schemas.push_back(alternative_schema<Alternatives, Traits>(std::exchange(first, false))), ...);
  if (optional) {
    schemas.push_back(Json{{"type", "object"},
                           {"properties", {{Traits::key, {{"type", "null"}}}}},
                           {"additionalProperties", true}});
  }
  return any_of(std::move(schemas));
}

template <class T>
Json type_schema(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    std::vector<Json> schemas;
    if constexpr (is_of<Value, std::variant>)
      schemas.push_back(variant_schema(Value(), true));
    else
      schemas.push_back(type_schema<Value>(limits));
    if (limits.false_is_null_) schemas.push_back(Json{{"const", false}});
    schemas.push_back(Json{{"type", "null"}});
    return any_of(std::move(schemas));
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return transforms_schema();
  } else if constexpr (is_of<T, std::vector>) {
    Limits entry = limits;
    entry.not_empty_ = false;
    const Json item = type_schema<typename T::value_type>(entry);
    Json list = {{"type", "array"}, {"items", item}};
    if (limits.not_empty_ || limits.least > 0) list["minItems"] = std::max<size_t>(1, limits.least);
    if (limits.most > 0) list["maxItems"] = limits.most;
    return limits.one_is_list_ ? any_of({item, list}) : list;
  } else if constexpr (is_of<T, OneOrMany>) {
    const Json item = type_schema<typename T::value_type>(limits);
    const Json list = {{"type", "array"}, {"items", item}};
    if (!T::is_optional) return any_of({item, list});
    return any_of({type_schema<typename T::Value>(limits), list, Json{{"type", "null"}}});
  } else if constexpr (is_of<T, std::variant>) {
    return variant_schema(T(), false);
  } else if constexpr (std::is_enum_v<T>) {
    Json names = Json::array();
    for (size_t i = 0; i < enum_names<T>.size(); ++i) names.push_back(to_json(static_cast<T>(i)));
    return Json{{"enum", names}};
  } else if constexpr (std::is_same_v<T, bool>) {
    return Json{{"type", "boolean"}};
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!limits.words.empty()) return Json{{"enum", limits.words}};
    Json text = {{"type", "string"}};
    if (limits.not_empty_) text["minLength"] = 1;
    return text;
  } else if constexpr (std::is_same_v<T, RawJson>) {
    return Json{{"type", "object"}};
  } else if constexpr (std::is_same_v<T, Colour>) {
    Json channel = type_schema<int64_t>(within(0, 255));
    return any_of({Json{{"enum", {"white", "black"}}},
                   Json{{"type", "array"}, {"items", channel}, {"minItems", 3}, {"maxItems", 3}}});
  } else if constexpr (Reflected<T>) {
    return struct_schema(T());
  } else {
    Json number = {{"type", std::is_same_v<T, int64_t> ? "integer" : "number"}};
    add_limits(number, limits);
    return number;
  }
}

class Schema : public IgnoresRules {
 public:
  Json properties = Json::object();
  Json required_keys = Json::array();
  Json alternatives = Json::array();  ///< of which one is required

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    describe<Member>(key, doc, limits);
    properties[key]["default"] = to_json(member);
  }
  template <class Member>
  void required(const char* key, Member&, const char* doc, const Limits& limits = {}) {
    describe<Member>(key, doc, limits);
    if (limits.other_key == nullptr) {
      required_keys.push_back(key);
    } else {
      alternatives = {{{"required", {key}}}, {{"required", {limits.other_key}}}};
    }
  }

 private:
  template <class Member>
  void describe(const char* key, const char* doc, const Limits& limits) {
    properties[key] = type_schema<Member>(limits);
    properties[key]["description"] = doc;
  }
};

template <class T>
Json struct_schema(T value) {
  Schema fields;
  value.fields(fields);
  Json schema = {{"type", "object"}};
  if constexpr (requires { T::kDoc; }) schema["description"] = T::kDoc;
  schema["properties"] = fields.properties;
  if (!fields.required_keys.empty()) schema["required"] = fields.required_keys;
  if (!fields.alternatives.empty()) schema["oneOf"] = fields.alternatives;
  schema["additionalProperties"] = false;
  return schema;
}

}  // namespace schema_detail

using schema_detail::struct_schema;

}  // namespace dalle2
