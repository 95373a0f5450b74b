// SPDX-License-Identifier: MIT
// Work that takes long and gets on: a save to a slow disk is not taken for a hang.
#pragma once

#include <cstdint>

namespace dalle2 {

/// A piece of such work is done. Any thread, at any rate.
void sign_of_life();
/// How many there were in this process.
uint64_t signs_of_life();

}  // namespace dalle2
