// SPDX-License-Identifier: MIT
// What the tests of this layer share.
#pragma once

#include "checkpoint/state_dict.h"

#include <cmath>

#include "io/files/atomic_file.h"
#include "support/temp_dir.h"

namespace dalle2::test {

/// A CLIP of tests/parity/make_clip_files.py, as each of the programs writes it.
inline std::string clip_fixture(const std::string& name) {
  return std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/clip_files/" + name;
}

/// The names of a state dict, in its order.
inline std::vector<std::string> names_of(const StateDict& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

inline bool same_content(const Value& a, const Value& b);

inline bool same_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!same_content(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

inline bool same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.numel() == 0 ||
          at::equal(a.contiguous().view(at::kByte), b.contiguous().view(at::kByte)));
}

/// Types, order and every bit of a tensor; NaN equals NaN. Stubs are compared by their name.
inline bool same_content(const Value& a, const Value& b) {
  if (a.data.index() != b.data.index()) return false;
  if (a.is_tensor()) {
    const at::Tensor &x = a.as_tensor(), &y = b.as_tensor();
    return x.dim() == 0 ? y.dim() == 0 && same_tensor(x.reshape({1}), y.reshape({1}))
                        : same_tensor(x, y);
  }
  if (a.is_list() || a.is_tuple()) return same_items(a.as_sequence(), b.as_sequence());
  if (a.is_dict()) {
    const Dict &x = a.as_dict(), &y = b.as_dict();
    for (size_t i = 0; i < x.items.size() && i < y.items.size(); ++i) {
      if (!same_content(x.items[i].first, y.items[i].first) ||
          !same_content(x.items[i].second, y.items[i].second)) {
        return false;
      }
    }
    return x.items.size() == y.items.size() && x.ordered == y.ordered;
  }
  if (a.is_double()) {
    return a.as_double() == b.as_double() ||
           (std::isnan(a.as_double()) && std::isnan(b.as_double()));
  }
  if (a.is_stub()) return a.type_name() == b.type_name();
  if (a.is_bytes()) return std::get<Bytes>(a.data).data == std::get<Bytes>(b.data).data;
  return a.is_none() || (a.is_bool() && a.as_bool() == b.as_bool()) ||
         (a.is_int() && a.as_int() == b.as_int()) ||
         (a.is_string() && a.as_string() == b.as_string());
}

inline Dict dict_of(std::initializer_list<std::pair<std::string, Value>> items) {
  Dict dict;
  for (const auto& [key, value] : items) dict.set(key, value);
  return dict;
}

/// A checkpoint with every kind of value and element type, as small as that can be.
inline Dict sample_checkpoint() {
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor flat = at::arange(12, options);
  Dict model = dict_of({{"unets.0.weight", flat.narrow(0, 0, 6).view({2, 3})},
                        {"unets.0.bias", flat.narrow(0, 6, 3)}});
  model.ordered = true;
  Dict types;
  for (const at::ScalarType type : {at::kDouble,
                                    at::kHalf,
                                    at::kBFloat16,
                                    at::kLong,
                                    at::kInt,
                                    at::kShort,
                                    at::kChar,
                                    at::kByte,
                                    at::kBool,
                                    at::kComplexFloat,
                                    at::ScalarType::UInt16,
                                    at::ScalarType::UInt32,
                                    at::ScalarType::UInt64,
                                    at::ScalarType::Float8_e4m3fn,
                                    at::ScalarType::Float8_e5m2}) {
    types.set(c10::toString(type), at::arange(-1, 2, options).abs().to(type));
  }
  Dict checkpoint;
  checkpoint.set("model", model);
  checkpoint.set("types", types);
  checkpoint.set("views",
                 List{{flat.narrow(0, 2, 4), flat.narrow(0, 3, 2), flat.view({3, 4}).t()}});
  checkpoint.set("scalar", at::scalar_tensor(2.5, options));
  checkpoint.set("empty", at::empty({0, 3}, options));
  checkpoint.set("numbers",
                 List{{0,
                       255,
                       256,
                       65535,
                       65536,
                       -1,
                       INT64_MAX,
                       INT64_MIN,
                       1.5,
                       -0.0,
                       std::nan(""),
                       INFINITY,
                       true,
                       false,
                       Value()}});
  checkpoint.set("text", "äöü € \"quoted\"\n");
  checkpoint.set("bytes", Bytes{std::string({'\x00', '\xff', 'a', 'b', '\x80'})});
  checkpoint.set("tuples", Tuple{{Tuple{}, Tuple{{1}}, Tuple{{1, "two", List{}}}}});
  Dict keyed;
  keyed.items.emplace_back(0, "integer key");
  keyed.items.emplace_back(1, Dict{});
  checkpoint.set("keyed", keyed);
  checkpoint.set("$odd", "a key with a dollar");
  return checkpoint;
}

}  // namespace dalle2::test
