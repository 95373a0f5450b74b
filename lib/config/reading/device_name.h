// SPDX-License-Identifier: MIT
// The names of devices in a config.
#pragma once

#include <optional>
#include <string>

namespace dalle2 {

/// What is wrong with the name of a device: right are `cpu`, `cuda`, and `cuda:N` with a number N
/// of at most four digits. Whether there is such a device is not asked.
std::optional<std::string> device_fault(const std::string& name);

}  // namespace dalle2
