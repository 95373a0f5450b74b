// SPDX-License-Identifier: MIT
// What is taken of a folder's listing that a server sends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dalle2 {

inline constexpr uint64_t kMostPageBytes = uint64_t{1} << 26;
inline constexpr size_t kMostListedFiles = 1'000'000;
inline constexpr size_t kMostNameBytes = 4096;
inline constexpr size_t kMostPages = 20'000;  ///< of a listing in S3, 1000 names or fewer each

}  // namespace dalle2
