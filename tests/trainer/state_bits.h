// SPDX-License-Identifier: MIT
// States that are compared bit for bit.
#pragma once

#include <catch2/catch.hpp>

#include "checkpoint/state_dict.h"
#include "trainer/trainer.h"

namespace dalle2::test {

/// All bytes of a value, one after the other: equal texts are equal bits.
inline void append_bits(const Value& value, std::string& text) {
  if (value.is_tensor()) {
    const at::Tensor tensor = value.as_tensor().cpu().contiguous();
    text.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  } else if (value.is_dict()) {
    for (const auto& [key, item] : value.as_dict().items) {
      append_bits(key, text);
      append_bits(item, text);
    }
  } else if (value.is_list() || value.is_tuple()) {
    for (const Value& item : value.as_sequence()) append_bits(item, text);
  } else if (value.is_string()) {
    text += value.as_string();
  } else if (value.is_int() || value.is_double()) {
    text += fmt::format("{}", value.as_double());
  }
  text += "|";
}

/// Checks that `found` has each tensor of `expected`, bit for bit.
inline void expect_equal(const StateDict& found, const StateDict& expected) {
  REQUIRE_FALSE(expected.empty());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(find_tensor(found, name) != nullptr);
    CHECK(at::equal(*find_tensor(found, name), tensor));
  }
}

/// Every number that makes a trainer what it is.
inline std::string bits_of(const Trainer& trainer) {
  std::string text;
  append_bits(trainer.state(), text);
  return text;
}

}  // namespace dalle2::test
