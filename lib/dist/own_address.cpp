// SPDX-License-Identifier: MIT
#include "dist/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

namespace dalle2 {
namespace {

/// @param size of the address
std::optional<std::string> numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return std::nullopt;
  }
  return std::string(text.data());
}

/// The local address of a UDP socket connected to it. The system chooses it by the route.
std::optional<std::string> own_end_towards(const addrinfo& there) {
  const int socket = ::socket(there.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return std::nullopt;
  std::optional<std::string> found;
  sockaddr_storage own{};
  auto* const end = reinterpret_cast<sockaddr*>(&own);
  socklen_t size = sizeof(own);
  if (::connect(socket, there.ai_addr, there.ai_addrlen) == 0 &&
      ::getsockname(socket, end, &size) == 0) {
    found = numeric(end, size);
  }
  ::close(socket);
  return found;
}

}  // namespace

std::optional<std::string> own_address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* first = nullptr;
  // A port is needed to connect, and none is used.
  if (::getaddrinfo(host.c_str(), "9", &hints, &first) != 0) return std::nullopt;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(first, ::freeaddrinfo);
  // Gloo needs the same family on all ranks, and names may resolve to other families on other machines: IPv4 first.
  for (const bool is_ipv4 : {true, false}) {
    for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
      if ((each->ai_family == AF_INET) != is_ipv4) continue;
      if (auto found = own_end_towards(*each)) return found;
    }
  }
  return std::nullopt;
}

std::optional<std::string> own_network_address() {
  // An address of no machine (RFC 5737), so that its route is the default one.
  if (auto found = own_address_towards("192.0.2.1"); found && !is_loopback(*found)) return found;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(first, ::freeifaddrs);
  constexpr unsigned kConnected = IFF_UP | IFF_RUNNING;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & (kConnected | IFF_LOOPBACK)) != kConnected) continue;
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    if (auto found = numeric(each->ifa_addr, sizeof(sockaddr_in))) return found;
  }
  return std::nullopt;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

std::optional<std::string> own_address(const World& world) {
  const std::optional<std::string> found = own_address_towards(world.store_host);
  const bool has_other_machines = world.size > world.local_size;
  if (found && !(has_other_machines && is_loopback(*found))) return found;
  const std::optional<std::string> network =
      has_other_machines ? own_network_address() : std::nullopt;
  return network ? network : found;
}

}  // namespace dalle2
