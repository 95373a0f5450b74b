// SPDX-License-Identifier: MIT
#include "run/device/device.h"
#include "run/device_of_tests.h"
#include "support/fake_device.h"

namespace dalle2::test {
namespace {

const bool stands_in = [] {
  stand_in_for_cuda(fake_device());
  return true;
}();

}  // namespace

const char* device_of_tests() {
  return "cuda";
}

}  // namespace dalle2::test
