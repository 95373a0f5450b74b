// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "dist/world.h"

namespace dalle2 {

/// Writes the reason of a failure where torchrun looks for it, so that the agent shows it as the
/// root cause. Does nothing without such a place; a file that cannot be written does not matter.
void write_failure_file(const World& world, const std::string& message) noexcept;

}  // namespace dalle2
