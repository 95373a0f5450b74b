// SPDX-License-Identifier: MIT
#include "checkpoint/pickle/value_json.h"

#include "base/error.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"

#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

namespace dalle2 {
namespace {

Value scalar_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  const bool is_large =
      json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (json.is_number_integer() && !is_large) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  return {};
}

std::string stub_text(const StubObject& stub) {
  if (stub.kind == StubObject::Kind::kGlobal) return stub.full_name();
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
      for (const Value& item : items) json.push_back(json_of(item));
      return json;
    }
  };
  return std::visit(Visitor{}, value.data);
}

bool has_tensor(const Value& value) {
  bool found = false;
  visit_tensors(value, [&](const std::string&, const at::Tensor&) { found = true; });
  return found;
}

/// The one entry of the root with tensors in it, if there is only one.
std::string only_entry_with_tensors(const Value& root) {
  std::string entry;
  if (root.is_dict()) {
    for (const auto& [key, child] : root.as_dict().items) {
      if (has_tensor(child)) {
        if (!entry.empty() || !key.is_string() || !child.is_dict()) return "";
        entry = key.as_string();
      }
    }
  }
  return entry;
}

class Packer {
 public:
  explicit Packer(const Value& root) : unnamed_(only_entry_with_tensors(root)) {}

  Json pack(const Value& value, const std::string& name) {
    if (value.is_tensor()) {
      tensors_.emplace_back(unique(name), value.as_tensor());
      return {{"$tensor", tensors_.back().first}};
    }
    if (value.is_dict()) return pack_dict(value.as_dict(), name);
    if (value.is_list() || value.is_tuple()) {
      Json items = Json::array();
      for (const Value& child : value.as_sequence()) {
        items.push_back(pack(child, below(name, std::to_string(items.size()))));
      }
      return value.is_list() ? items : Json{{"$tuple", std::move(items)}};
    }
    return pack_scalar(value, name);
  }

  StateDict take_tensors() { return std::move(tensors_); }

 private:
  std::string below(const std::string& name, const std::string& child) const {
    if (name.empty()) return child == unnamed_ ? "" : child;
    return name + "." + child;
  }

  /// "a.b" of {"a.b": ..} and of {"a": {"b": ..}} are two tensors.
  std::string unique(const std::string& name) {
    std::string result = name.empty() ? "tensor" : name;
    for (int i = 2; !names_.insert(result).second; ++i) result = fmt::format("{}#{}", name, i);
    return result;
  }

  Json pack_dict(const Dict& dict, const std::string& name) {
    bool plain = !dict.ordered;
    for (const auto& [key, child] : dict.items) {
      plain = plain && key.is_string() && !key.as_string().starts_with("$");
    }
    if (plain) {
      Json object = Json::object();
      for (const auto& [key, child] : dict.items) {
        object.get_ref<Json::object_t&>().push_back(
            {checked(key.as_string(), name), pack(child, below(name, key.as_string()))});
      }
      return object;
    }
    Json pairs = Json::array();
    for (const auto& [key, child] : dict.items) {
      pairs.push_back(Json::array({pack(key, ""), pack(child, below(name, describe(key)))}));
    }
    return {{dict.ordered ? "$ordered" : "$dict", std::move(pairs)}};
  }

  static const std::string& checked(const std::string& text, const std::string& name) {
    if (const auto fault = utf8_fault(text)) {
      throw DataError("{}: cannot be saved: {}", name.empty() ? "/" : name, *fault);
    }
    return text;
  }

  static Json pack_scalar(const Value& value, const std::string& name) {
    if (value.is_double() && !std::isfinite(value.as_double())) {
      const double number = value.as_double();
      return {{"$float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
    }
    if (value.is_bytes()) {
      std::string hex;
      for (const char byte : std::get<Bytes>(value.data).data) {
        hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      }
      return {{"$bytes", hex}};
    }
    if (value.is_stub()) {
      throw DataError("{}: cannot be saved: an object of the class {}", name, value.type_name());
    }
    if (value.is_string()) return checked(value.as_string(), name);
    return Json::parse(json_of_value(value));
  }

  std::string unnamed_;
  StateDict tensors_;
  std::unordered_set<std::string> names_;
};

class Unpacker {
 public:
  /// Of JSON that take_apart() did not make: an object is a dict, whatever its keys.
  Unpacker() : has_kinds_(false) {}
  Unpacker(const StateDict& tensors, const std::string& where) : where_(where) {
    for (const auto& [name, tensor] : tensors) tensors_[name] = tensor;
  }

  Value unpack(const Json& json, int depth) const {
    if (depth > kMaxValueDepth) fail("is nested deeper than 200 levels");
    if (json.is_array()) return List{unpack_items(json, depth)};
    if (!json.is_object()) return scalar_of(json);
    if (has_kinds_ && json.size() == 1 && json.begin().key().starts_with("$")) {
      return unpack_kind(json.begin().key(), json.begin().value(), depth);
    }
    Dict dict;
    for (const auto& [key, child] : json.items()) {
      dict.items.emplace_back(key, unpack(child, depth + 1));
    }
    return dict;
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw DataError("{}: the checkpoint in its metadata {}", where_, text);
  }

  std::vector<Value> unpack_items(const Json& json, int depth) const {
    std::vector<Value> items;
    for (const Json& item : json) items.push_back(unpack(item, depth + 1));
    return items;
  }

  Value unpack_kind(const std::string& kind, const Json& content, int depth) const {
    if (kind == "$tensor" && content.is_string()) {
      const auto found = tensors_.find(content.get<std::string>());
      if (found == tensors_.end()) {
        fail("names a tensor that is missing: " + content.get<std::string>());
      }
      return found->second;
    }
    if (kind == "$tuple" && content.is_array()) return Tuple{unpack_items(content, depth)};
    if ((kind == "$dict" || kind == "$ordered") && content.is_array()) {
      Dict dict;
      dict.ordered = kind == "$ordered";
      for (const Json& pair : content) {
        if (!pair.is_array() || pair.size() != 2) fail("has a dict that is not one");
        dict.items.emplace_back(unpack(pair[0], depth + 1), unpack(pair[1], depth + 1));
      }
      return dict;
    }
    if (kind == "$float" && content.is_string()) {
      const std::string text = content.get<std::string>();
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      return text == "nan"   ? std::numeric_limits<double>::quiet_NaN()
             : text == "inf" ? kInfinity
                             : -kInfinity;
    }
    if (kind == "$bytes" && content.is_string()) return unpack_bytes(content.get<std::string>());
    fail("has an entry of the unknown kind " + kind);
  }

  Value unpack_bytes(const std::string& hex) const {
    if (hex.size() % 2 != 0 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
      fail("has bytes that are not hexadecimal");
    }
    Bytes bytes;
    for (size_t i = 0; i < hex.size(); i += 2) {
      bytes.data += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    return bytes;
  }

  std::unordered_map<std::string, at::Tensor> tensors_;
  std::string where_;
  bool has_kinds_ = true;
};

}  // namespace

std::string json_of_value(const Value& value, int indent) {
  // Text from foreign files need not be UTF-8; it is shown with the broken bytes replaced.
  return json_of(value).dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

void visit_tensors(const Value& value,
                   const std::function<void(const std::string&, const at::Tensor&)>& visit,
                   const std::string& name) {
  const auto below = [&](const std::string& child) {
    return name.empty() ? child : name + "/" + child;
  };
  if (value.is_tensor()) visit(name, value.as_tensor());
  if (value.is_dict()) {
    for (const auto& [key, child] : value.as_dict().items) {
      visit_tensors(child, visit, below(describe(key)));
    }
  } else if (value.is_list() || value.is_tuple()) {
    size_t index = 0;
    for (const Value& child : value.as_sequence()) {
      visit_tensors(child, visit, below(std::to_string(index++)));
    }
  }
}

std::string describe(const Value& value) {
  return value.is_string() || value.is_tensor() || value.is_stub() || value.is_bytes()
             ? json_of(value).get<std::string>()
             : json_of_value(value);
}

Value value_of_json(const std::string& text) {
  const ParsedJson parsed = parse_untrusted_json(text, {.most_levels = kMaxValueDepth});
  if (!parsed.is_right()) throw DataError("expected JSON: {}", parsed.fault);
  return Unpacker().unpack(parsed.value, 0);
}

ValueTree take_apart(const Value& root) {
  Packer packer(root);
  ValueTree tree;
  tree.json = packer.pack(root, "").dump();
  tree.tensors = packer.take_tensors();
  return tree;
}

Value put_together(const ValueTree& tree, const std::string& where) {
  // A dict with keys that are not text takes three levels of JSON: {"$dict": [[key, value], ...]}.
  const ParsedJson parsed = parse_untrusted_json(tree.json, {.most_levels = 4 * kMaxValueDepth});
  if (!parsed.is_right()) {
    throw DataError("{}: the checkpoint in its metadata: {}", where, parsed.fault);
  }
  return Unpacker(tree.tensors, where).unpack(parsed.value, 0);
}

}  // namespace dalle2
