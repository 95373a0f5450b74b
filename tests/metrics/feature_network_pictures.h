// SPDX-License-Identifier: MIT
// The pictures that tests/parity/make_feature_networks.py shows to its networks.
#pragma once

#include "support/fixture.h"

namespace dalle2::test {

/// [n, 3, h, w] of bytes: those of a number in "feature_networks/expected". As `picture` in the maker.
inline at::Tensor shown_pictures(const Fixture& expected, size_t number) {
  const auto size = listed(expected, "sizes", 5).at(number).get<std::vector<int64_t>>();
  const int64_t count = expected.json.at("counts").at(number).get<int64_t>();
  at::Tensor pictures = at::empty({count, 3, size.at(0), size.at(1)}, at::kByte);
  uint8_t* next = pictures.data_ptr<uint8_t>();
  for (int64_t n = 0; n < count; ++n) {
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t y = 0; y < size[0]; ++y) {
        for (int64_t x = 0; x < size[1]; ++x) {
          const int64_t value =
              (x + 13 * static_cast<int64_t>(number) + 1) * (y + 7 * c + 3) * 2654435761 +
              (x * x + 31 * y * y + 97 * n) * 40503;
          *next++ = static_cast<uint8_t>((value >> 7) & 255);
        }
      }
    }
  }
  return pictures;
}

}  // namespace dalle2::test
