// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dalle2 {

/// Calls `work(i)` once for each i < count, begun in that order, on the calling thread and up to `threads - 1` others, or fewer if the
/// system has no more. After an exception, no further call begins. @throws the exception of the lowest i, after all threads have ended: the same
/// one whatever the number of threads
void in_parallel(size_t count, int64_t threads, const std::function<void(size_t)>& work);

}  // namespace dalle2
