// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace dalle2 {

/// "cpu", "cuda" or "cuda:N". Without a usable GPU "cuda" and "cuda:N" fall back to the CPU with a
/// notice if `allow_fallback`.
/// @param pointer of the option, for messages: "/train/device", "--device"
/// @throws ConfigError for another name, for a GPU that this machine does not have, or for cuda
/// without a usable GPU unless `allow_fallback`
at::Device choose_device(const std::string& name, const std::string& pointer, bool allow_fallback);

/// Makes a GPU the current one of this thread: what names no device then is on it.
void make_current(const at::Device& device);

}  // namespace dalle2
