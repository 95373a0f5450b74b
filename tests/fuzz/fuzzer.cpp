// SPDX-License-Identifier: MIT
// A harness of libFuzzer: the bytes go to DALLE2_PARSER, and our errors are answers.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "fuzz/parsers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    dalle2::test::DALLE2_PARSER(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const dalle2::Error&) {
  }
  return 0;
}
