// SPDX-License-Identifier: MIT
// The address at which other machines reach this one. Its hostname may resolve to a loopback address, as on Debian.
#pragma once

#include <optional>
#include <string>

#include "dist/world.h"

namespace dalle2 {

/// The address of this machine on the route to `host`. Nothing is sent. @return numeric; none if the host has no address or no route
std::optional<std::string> own_address_towards(const std::string& host);

/// The address of the default route; without one, that of the first network interface that is connected and not a loopback.
/// @return numeric, IPv4; none without a network
std::optional<std::string> own_network_address();

/// Whether packets to this numeric address stay on the machine: 127.x.x.x or ::1.
bool is_loopback(const std::string& address);

/// The address on the route to the store. If that is a loopback, as on the machine that has the store, and the run has
/// other machines too, own_network_address(). @return none if the host of the store is unknown and there is no network
std::optional<std::string> own_address(const World& world);

}  // namespace dalle2
