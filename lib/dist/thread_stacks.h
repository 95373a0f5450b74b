// SPDX-License-Identifier: MIT
#pragma once

namespace dalle2 {

/// Writes where each other thread of this process is to stderr, for a report of a process that is stuck.
/// Takes a second at most; a thread that does not answer is named.
void print_thread_stacks() noexcept;

}  // namespace dalle2
