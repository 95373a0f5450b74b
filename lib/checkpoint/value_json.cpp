// SPDX-License-Identifier: MIT
#include "checkpoint/value_json.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "checkpoint/dtypes.h"

#include <cmath>

namespace dalle2 {
namespace {

Value value_of(const Json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return json.get<double>();
      }
      return json.get<int64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      List list;
      for (const Json& item : json) {
        list.items.push_back(value_of(item));
      }
      return list;
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.items.emplace_back(key, value_of(item));
      }
      return dict;
    }
    default:
      return {};
  }
}

std::string stub_text(const StubObject& stub) {
  if (stub.kind == StubObject::Kind::kGlobal) {
    return stub.full_name();
  }
  return fmt::format("object of {}", stub.full_name());
}

Json json_of(const Value& value) {
  struct Visitor {
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(bool flag) const { return flag; }
    Json operator()(int64_t number) const { return number; }
    Json operator()(double number) const {
      return std::isfinite(number) ? Json(number) : Json(fmt::format("{}", number));
    }
    Json operator()(const std::string& text) const { return text; }
    Json operator()(const Bytes& bytes) const { return fmt::format("{} bytes", bytes.data.size()); }
    Json operator()(const at::Tensor& tensor) const {
      return fmt::format(
          "tensor {} {}", python_dtype(tensor.scalar_type()), shape_text(tensor.sizes()));
    }
    Json operator()(const List& list) const { return array(list.items); }
    Json operator()(const Tuple& tuple) const { return array(tuple.items); }
    Json operator()(const Dict& dict) const {
      // Pushed, not looked up: an ordered object compares every key with all before it.
      Json json = Json::object();
      auto& object = json.get_ref<Json::object_t&>();
      for (const auto& [key, item] : dict.items) {
        object.push_back({key.is_string() ? key.as_string() : describe(key), json_of(item)});
      }
      return json;
    }
    Json operator()(const std::shared_ptr<StubObject>& stub) const { return stub_text(*stub); }
    static Json array(const std::vector<Value>& items) {
      Json json = Json::array();
      for (const Value& item : items) {
        json.push_back(json_of(item));
      }
      return json;
    }
  };
  return std::visit(Visitor{}, value.data);
}

}  // namespace

Value value_of_json(const std::string& text) {
  const ParsedJson parsed = parse_untrusted_json(text, {.most_levels = kMaxValueDepth});
  if (!parsed.is_right()) throw DataError("expected JSON: {}", parsed.fault);
  return value_of(parsed.value);
}

std::string json_of_value(const Value& value, int indent) {
  // Text from foreign files need not be UTF-8; it is shown with the broken bytes replaced.
  return json_of(value).dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

std::string describe(const Value& value) {
  return value.is_string() || value.is_tensor() || value.is_stub() || value.is_bytes()
             ? json_of(value).get<std::string>()
             : json_of_value(value);
}

}  // namespace dalle2
