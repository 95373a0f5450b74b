// SPDX-License-Identifier: MIT
// A harness of libFuzzer: the bytes go to a function of fuzz/parsers.h, and our errors are answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "fuzz/parsers.h"

#define DALLE2_FUZZ(parser)                                                         \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {         \
    try {                                                                           \
      dalle2::test::parser(std::string(reinterpret_cast<const char*>(data), size)); \
    } catch (const dalle2::Error&) {                                                \
    }                                                                               \
    return 0;                                                                       \
  }
