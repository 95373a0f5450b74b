// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace dalle2 {

/// Calls `work(i)` once for each i < count, in no particular order, on the calling thread and up to `threads - 1` others. After an
/// exception, no further call begins. @throws the first exception of `work`, after all threads have ended
void in_parallel(size_t count, int64_t threads, const std::function<void(size_t)>& work);

}  // namespace dalle2
