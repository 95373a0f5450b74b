// SPDX-License-Identifier: MIT
#include "run/device_of_tests.h"

namespace dalle2::test {

const char* device_of_tests() {
  return "cpu";
}

}  // namespace dalle2::test
