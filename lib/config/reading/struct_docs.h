// SPDX-License-Identifier: MIT
// The visitors that describe the structs: as JSON Schema 2020-12, and as the tables of docs/config.md.
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
namespace docs_detail {

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

inline std::string escaped(const std::string& text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? "\\|" : std::string(1, c);
  return cell;
}

inline std::string words_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "`" : ", `") + word + "`";
  return text;
}

inline std::string with_limits(const std::string& type, const Limits& limits) {
  const std::string text = limits_text(limits);
  return text.empty() ? type : type + " " + text;
}

template <class T>
std::string type_text(const Limits& limits) {
  if constexpr (OptionalTraits<T>::is_optional) {
    using Value = typename OptionalTraits<T>::Value;
    const std::string type = type_text<Value>(limits);
    if constexpr (IsVector<Value>::value && !std::is_same_v<Value, std::vector<TransformConfig>>) {
      using Item = typename ValueOf<Value>::Type;
      if (!limits.one_is_list_) return "null, or a " + type;
      if constexpr (takes_null<Item>) {
        return type_text<typename OptionalTraits<Item>::Value>(limits) +
               ", null, or a list of these";
      }
    }
    return type + (limits.false_is_null_ ? ", false or null" : " or null");
  } else if constexpr (std::is_same_v<T, std::vector<TransformConfig>>) {
    return "object";
  } else if constexpr (IsVector<T>::value) {
    const std::string item = type_text<typename ValueOf<T>::Type>(limits);
    if (limits.one_is_list_) return item + ", or a list";
    if (item == "object") return "list of objects";
    const std::string count = limits.least > 0 && limits.least == limits.most
                                  ? fmt::format("list of {}: ", limits.most)
                                  : "list of: ";
    return count + item;
  } else if constexpr (IsOneOrMany<T>::value) {
    // Null may stand for the whole and for each entry.
    return type_text<typename T::Value>(limits) +
           (T::is_optional ? ", null, or a list of these" : ", or a list");
  } else if constexpr (std::is_enum_v<T>) {
    std::vector<std::string> names(enum_names<T>.begin(), enum_names<T>.end());
    return words_text(names);
  } else if constexpr (std::is_same_v<T, bool>) {
    return "boolean";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return with_limits("integer", limits);
  } else if constexpr (std::is_same_v<T, double>) {
    return with_limits("number", limits);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return limits.words.empty() ? "string" : words_text(limits.words);
  } else if constexpr (std::is_same_v<T, Colour>) {
    return "`white`, `black`, list of 3 integers";
  } else {
    return "object";
  }
}

/// A table of one struct, and the sections of the structs below it.
class Tables : public IgnoresRules {
 public:
  explicit Tables(std::string path) : path_(std::move(path)) {}

  template <class Member>
  void field(const char* key, Member& member, const char* doc, const Limits& limits = {}) {
    row<Member>(key, "`" + to_json(member).dump() + "`", doc, limits);
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if constexpr (Reflected<Member>) {
      // Not of Member(): a kind of run may have defaults of its own.
      below_ += section_of(member, path, "`" + path + "`");
    } else {
      section<Member>(path);
    }
  }
  template <class Member>
  void required(const char* key, Member&, const char* doc, const Limits& limits = {}) {
    const std::string unless =
        limits.other_key == nullptr ? "" : fmt::format(" without `{}`", limits.other_key);
    row<Member>(key, "**required**" + unless, doc, limits);
    section<Member>(path_.empty() ? key : path_ + "." + key);
  }

  template <class T>
  static std::string section_of(T value,
                                const std::string& path,
                                const std::string& title,
                                const std::string& first_row = "") {
    Tables tables(path);
    tables.rows_ = first_row;
    value.fields(tables);
    std::string text = fmt::format("\n## {}\n", title);
    if constexpr (requires { T::kDoc; }) text += fmt::format("\n{}\n", T::kDoc);
    if (!tables.rows_.empty()) {
      text += "\n| key | type | default | meaning |\n|---|---|---|---|\n" + tables.rows_;
    }
    return text + tables.below_;
  }

 private:
  template <class Member>
  void row(const char* key, const std::string& initial, const char* doc, const Limits& limits) {
    rows_ += fmt::format("| `{}` | {} | {} | {} |\n",
                         key,
                         escaped(type_text<Member>(limits)),
                         escaped(initial),
                         escaped(doc));
  }

  template <class Member>
  void section(const std::string& path) {
    if constexpr (OptionalTraits<Member>::is_optional) {
      section<typename OptionalTraits<Member>::Value>(path);
    } else if constexpr (std::is_same_v<Member, std::vector<TransformConfig>>) {
      below_ += transforms(path);
    } else if constexpr (IsVector<Member>::value) {
      section<typename ValueOf<Member>::Type>(path + "[i]");
    } else if constexpr (IsOneOrMany<Member>::value) {
      section<typename ValueOf<Member>::Type>(path);
    } else if constexpr (IsVariant<Member>::value) {
      alternatives(static_cast<Member*>(nullptr), path);
    } else if constexpr (Reflected<Member>) {
      below_ += section_of(Member(), path, "`" + path + "`");
    }
  }

  template <class... Alternatives>
  void alternatives(std::variant<Alternatives...>*, const std::string& path) {
    using Variant = std::variant<Alternatives...>;
    using Traits = TagTraits<Variant>;
    const bool none_is_default = Traits::key == std::string("load_from");
    std::string initial = none_is_default ? "`null`" : "";
    const auto add = [&](auto alternative) {
      const std::string tag = fmt::format("`\"{}\"`", alternative.kTag);
      if (initial.empty()) initial = tag;
      below_ += section_of(
          alternative,
          path,
          fmt::format("`{}` with `\"{}\": \"{}\"`", path, Traits::key, alternative.kTag),
          fmt::format("| `{}` | {} | {} | {} |\n", Traits::key, tag, initial, Traits::doc));
    };
    (add(Alternatives{}), ...);
  }

  static std::string transforms(const std::string& path) {
    std::string text = fmt::format(
        "\n## `{}`\n\nAn object with one key for each transform. The value is an object with "
        "the arguments, `true` for the defaults, or `false` to leave the transform out. The "
        "transforms are applied in the order of their keys. `ToTensor` is needed.\n\n| "
        "transform | argument | type | default | meaning |\n|---|---|---|---|---|\n",
        path);
    for (size_t i = 0; i < enum_names<TransformKind>.size(); ++i) {
      TransformConfig transform;
      transform.kind = static_cast<TransformKind>(i);
      Tables arguments("");
      transform.fields(arguments);
      const std::string name = fmt::format("| `{}` ", enum_names<TransformKind>[i]);
      if (arguments.rows_.empty()) text += name + "| | | | no arguments |\n";
      for (size_t at = 0; at < arguments.rows_.size();) {
        const size_t end = arguments.rows_.find('\n', at) + 1;
        text += name + arguments.rows_.substr(at, end - at);
        at = end;
      }
    }
    return text;
  }

  std::string path_;
  std::string rows_;
  std::string below_;
};

}  // namespace docs_detail

using docs_detail::struct_schema;
using docs_detail::Tables;

}  // namespace dalle2
