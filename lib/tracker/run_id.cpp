// SPDX-License-Identifier: MIT
#include "tracker/run_id.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr std::string_view kForm = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

bool is_hex(char digit) {
  return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
}

}  // namespace

std::string make_run_id() {
  std::array<uint8_t, 16> bytes = {};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw ResourceError("the system gives no random bytes for the id of the run: {}",
                        errno_text(errno));
  }
  bytes[6] = static_cast<uint8_t>((bytes[6] & 0x0f) | 0x40);  // version 4
  bytes[8] = static_cast<uint8_t>((bytes[8] & 0x3f) | 0x80);  // variant of RFC 9562
  std::string id;
  size_t nibble = 0;
  for (const char place : kForm) {
    if (place == '-') {
      id += place;
      continue;
    }
    const int shift = nibble % 2 == 0 ? 4 : 0;
    id += "0123456789abcdef"[(bytes[nibble / 2] >> shift) & 0xf];
    ++nibble;
  }
  return id;
}

bool is_run_id(const std::string& text) {
  return text.size() == kForm.size() &&
         std::equal(text.begin(), text.end(), kForm.begin(), [](char have, char form) {
           return form == '-' ? have == '-' : is_hex(have);
         });
}

}  // namespace dalle2
