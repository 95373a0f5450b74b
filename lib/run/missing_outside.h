// SPDX-License-Identifier: MIT
#pragma once

#include "config/kinds.h"
#include "config/reading/faults.h"

namespace dalle2 {

/// Adds to the faults of a config what it names outside of itself and is not there: files, folders,
/// programs, keys of services. A single thing is left to the place that needs it, with its exit code.
/// @param asks_hosts services and hosts are asked too, once each
void find_missing(const NamedOutside& named, bool asks_hosts, Faults& faults);

}  // namespace dalle2
