// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

namespace dalle2 {

/// Memory of this process in bytes, by a name of /proc/self/status: "VmRSS" resident now, "VmHWM"
/// the peak so far. 0 where there is no such file or name.
uint64_t process_memory(const std::string& field);

}  // namespace dalle2
