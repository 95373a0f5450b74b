// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace dalle2 {

/// "cpu", "cuda" or "cuda:N". Without a usable GPU "cuda" and "cuda:N" fall back to the CPU with a
/// notice if `allow_fallback`.
/// @param pointer of the option, for messages: "/train/device", "--device"
/// @throws ConfigError for another name, for a GPU that is not among those there are, or for cuda
/// without a GPU and fall-back
at::Device choose_device(const std::string& name, const std::string& pointer, bool allow_fallback);

}  // namespace dalle2
