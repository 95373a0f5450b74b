// SPDX-License-Identifier: MIT
#pragma once

namespace dalle2::test {

/// /train/device of the runs in these tests: "cpu", or "cuda" in the program in which a device stands in
/// for a GPU. Each program has one answer (run/on_cpu.cpp, device/on_fake_device.cpp).
const char* device_of_tests();

}  // namespace dalle2::test
