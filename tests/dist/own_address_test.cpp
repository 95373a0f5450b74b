// SPDX-License-Identifier: MIT
#include "dist/world.h"

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

const std::string kNoHost(300, 'x');  // longer than names may be: nobody is asked

TEST_CASE("a machine's own address is that of the route to the other end") {
  CHECK(own_address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(own_address_towards("127.0.1.1") == "127.0.0.1");
  CHECK(own_address_towards("localhost") == "127.0.0.1");  // not ::1, which hosts may name first
  CHECK(own_address_towards(kNoHost) == std::nullopt);
  if (const auto network = own_network_address()) {
    CHECK_FALSE(is_loopback(*network));
    CHECK(own_address_towards(*network) == *network);
  }
}

TEST_CASE("loopback addresses stay on the machine") {
  CHECK(is_loopback("127.0.0.1"));
  CHECK(is_loopback("127.0.1.1"));
  CHECK(is_loopback("::1"));
  CHECK_FALSE(is_loopback("10.0.0.127"));
  CHECK_FALSE(is_loopback("1127.0.0.1"));
  CHECK_FALSE(is_loopback("fe80::1"));
}

TEST_CASE("a loopback address serves the processes of one machine only") {
  World world;
  world.size = world.local_size = 2;
  world.store_host = "127.0.1.1";
  CHECK(own_address(world) == "127.0.0.1");
  world.local_size = 1;
  CHECK(own_address(world) == own_network_address().value_or("127.0.0.1"));
  world.store_host = kNoHost;
  CHECK(own_address(world) == own_network_address());
  world.local_size = 2;
  CHECK(own_address(world) == std::nullopt);
}

}  // namespace
}  // namespace dalle2
