// SPDX-License-Identifier: MIT
// What a config names outside of itself, and is not there: files of networks, vocabularies, folders,
// keys of services, hosts.
#pragma once

#include "config/kinds.h"
#include "config/reading/faults.h"

namespace dalle2 {

/// Adds what is missing to the faults of the config, where one of them or several things missing end
/// the start anyway: a user mends all at once. A single thing that is missing is left to the place that
/// needs it, which ends the program with its own exit code.
/// @param asks_hosts services and hosts are asked too, once each
void find_missing(const NamedOutside& named, bool asks_hosts, Faults& faults);

}  // namespace dalle2
