// SPDX-License-Identifier: MIT
// The visitor that describes the structs as JSON Schema 2020-12.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "config/reading/json_text.h"
#include "config/reading/writer.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {
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

template <class Variant>
struct VariantSchema;
template <class... Alternatives>
struct VariantSchema<std::variant<Alternatives...>> {
  using Traits = TagTraits<std::variant<Alternatives...>>;

  static Json make(bool optional) {
    std::vector<Json> schemas;
    bool first = !optional;  // without a tag the first alternative is meant, or none if optional
    (schemas.push_back(alternative<Alternatives>(std::exchange(first, false))), ...);
    if (optional) {
      schemas.push_back(Json{{"type", "object"},
                             {"properties", {{Traits::key, {{"type", "null"}}}}},
                             {"additionalProperties", true}});
    }
    return any_of(std::move(schemas));
  }

  template <class Alternative>
  static Json alternative(bool tag_may_be_absent) {
    Json schema = struct_schema(Alternative{});
    Json properties = {{Traits::key, {{"const", Alternative::kTag}, {"description", Traits::doc}}}};
    properties.update(schema["properties"]);
    schema["properties"] = properties;
    if (!tag_may_be_absent) {
      Json required = {Traits::key};
      if (schema.contains("required")) {
        required.insert(required.end(), schema["required"].begin(), schema["required"].end());
      }
      schema["required"] = required;
    }
    return schema;
  }
};

template <class T>
Json type_schema(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    std::vector<Json> schemas;
    if constexpr (IsVariant<Value>::value)
      schemas.push_back(VariantSchema<Value>::make(true));
    else
      schemas.push_back(type_schema<Value>(limits));
    if (limits.false_is_null_) schemas.push_back(Json{{"const", false}});
    schemas.push_back(Json{{"type", "null"}});
    return any_of(std::move(schemas));
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return transforms_schema();
  } else if constexpr (IsVector<T>::value) {
    Limits entry = limits;
    entry.not_empty_ = false;
    const Json item = type_schema<typename ValueOf<T>::Type>(entry);
    Json list = {{"type", "array"}, {"items", item}};
    if (limits.not_empty_ || limits.least > 0) {
      list["minItems"] = std::max<size_t>(1, limits.least);
    }
    if (limits.most > 0) list["maxItems"] = limits.most;
    return limits.one_is_list_ ? any_of({item, list}) : list;
  } else if constexpr (IsOneOrMany<T>::value) {
    const Json item = type_schema<typename ValueOf<T>::Type>(limits);
    const Json list = {{"type", "array"}, {"items", item}};
    if (!T::is_optional) return any_of({item, list});
    return any_of({type_schema<typename T::Value>(limits), list, Json{{"type", "null"}}});
  } else if constexpr (IsVariant<T>::value) {
    return VariantSchema<T>::make(false);
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
