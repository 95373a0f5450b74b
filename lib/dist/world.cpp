// SPDX-License-Identifier: MIT
#include "dist/world.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace dalle2 {
namespace {

/// Steps that srun did not start have numbers from here on: the batch script, an interactive shell.
/// They have the variables of a first task without being one.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

/// Slurm's users run several jobs on one machine: the port follows from the job's number.
constexpr int64_t kFirstSlurmPort = 15000;

int64_t number_from(const Environment& environment,
                    const std::string& name,
                    int64_t least,
                    int64_t most) {
  const std::optional<std::string> text = environment(name);
  if (!text) {
    throw ConfigError(
        "{} is not set, although other variables say that several processes train together.\n  "
        "Start them with torchrun, srun or --nproc-per-node, which set it; or unset RANK and "
        "WORLD_SIZE to train with one.",
        name);
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw ConfigError(
        "{}: expected a whole number from {} to {}, got \"{}\" (an environment "
        "variable that the launcher of the processes sets)",
        name,
        least,
        most,
        *text);
  }
  return value;
}

int64_t number_or(const Environment& environment,
                  const std::string& name,
                  int64_t otherwise,
                  int64_t most) {
  return environment(name) ? number_from(environment, name, 0, most) : otherwise;
}

constexpr int64_t kMostRanks = 1 << 20;

void check_ranks(const World& world, const char* rank_name, const char* local_name) {
  if (world.local_rank >= world.local_size) {
    throw ConfigError("{} is {}, but this machine has {} processes",
                      local_name,
                      world.local_rank,
                      world.local_size);
  }
  if (world.rank >= world.size) {
    throw ConfigError("{} is {}, but there are {} processes", rank_name, world.rank, world.size);
  }
}

Carrier carrier_of(const Environment& environment) {
  const std::string name = environment("DALLE2_GROUP").value_or("");
  if (name.empty()) return Carrier::kByDevice;
  if (name == "gloo") return Carrier::kGloo;
  if (name == "nccl") return Carrier::kNccl;
  throw ConfigError("DALLE2_GROUP: expected \"gloo\" or \"nccl\", got \"{}\"", name);
}

/// torchrun's variables; --nproc-per-node sets the same.
World of_torchrun(const Environment& environment) {
  World world;
  world.carrier = carrier_of(environment);
  world.size = static_cast<int>(number_from(environment, "WORLD_SIZE", 1, kMostRanks));
  world.rank = static_cast<int>(number_from(environment, "RANK", 0, kMostRanks));
  world.local_rank = static_cast<int>(number_or(environment, "LOCAL_RANK", 0, kMostRanks));
  world.local_size = static_cast<int>(
      number_or(environment, "LOCAL_WORLD_SIZE", world.local_rank + 1, kMostRanks));
  check_ranks(world, "RANK", "LOCAL_RANK");
  world.launcher = environment("DALLE2_LAUNCHED") ? Launcher::kOurs : Launcher::kTorchrun;
  world.error_file = environment("TORCHELASTIC_ERROR_FILE").value_or("");
  if (world.is_alone()) return world;
  world.store_host = environment("MASTER_ADDR").value_or("127.0.0.1");
  world.store_port = static_cast<uint16_t>(number_from(environment, "MASTER_PORT", 1, UINT16_MAX));
  world.hosts_store =
      world.rank == 0 && environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") != "True";
  return world;
}

World of_slurm(const Environment& environment) {
  World world;
  world.launcher = Launcher::kSlurm;
  world.carrier = carrier_of(environment);
  world.size = static_cast<int>(number_from(environment, "SLURM_NTASKS", 1, kMostRanks));
  world.rank = static_cast<int>(number_from(environment, "SLURM_PROCID", 0, kMostRanks));
  world.local_rank = static_cast<int>(number_or(environment, "SLURM_LOCALID", 0, kMostRanks));
  world.local_size = world.local_rank + 1;
  // "2(x3),1": two tasks on each of three machines, one on the next. All of ours have as many.
  if (const auto tasks = environment("SLURM_STEP_TASKS_PER_NODE")) {
    int64_t count = 0;
    std::from_chars(tasks->data(), tasks->data() + tasks->size(), count);
    if (count > world.local_rank) world.local_size = static_cast<int>(count);
  }
  check_ranks(world, "SLURM_PROCID", "SLURM_LOCALID");
  if (world.is_alone()) return world;
  const auto nodes = environment("SLURM_STEP_NODELIST");
  world.store_host =
      environment("MASTER_ADDR")
          .value_or(
              first_host(nodes ? *nodes : environment("SLURM_JOB_NODELIST").value_or("127.0.0.1")));
  const int64_t job = number_from(environment, "SLURM_JOB_ID", 0, INT64_MAX);
  const int64_t step = number_or(environment, "SLURM_STEP_ID", 0, INT64_MAX);
  // Steps of a job may run side by side, and so may jobs of neighbouring numbers.
  constexpr int64_t kStepDistance = 211, kPorts = 10000;
  world.store_port = static_cast<uint16_t>(
      environment("MASTER_PORT")
          ? number_from(environment, "MASTER_PORT", 1, UINT16_MAX)
          : kFirstSlurmPort + (job % kPorts + step % kPorts * kStepDistance) % kPorts);
  world.hosts_store = world.rank == 0;
  world.store_prefix = fmt::format("dalle2/{}.{}/", job, step);
  return world;
}

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

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

bool has_given_place(const Environment& environment) {
  return environment("RANK") || environment("WORLD_SIZE");
}

World world_from_environment(const Environment& environment) {
  if (has_given_place(environment)) return of_torchrun(environment);
  if (environment("SLURM_PROCID") && environment("SLURM_STEP_ID") && environment("SLURM_NTASKS") &&
      number_from(environment, "SLURM_STEP_ID", 0, INT64_MAX) < kFirstSpecialStep) {
    return of_slurm(environment);
  }
  if (carrier_of(environment) != Carrier::kByDevice) {
    throw ConfigError(
        "DALLE2_GROUP: is set, but this process has no place among others\n  Start it with "
        "--nproc-per-node, torchrun or srun, or unset it. For a single process, also set RANK=0, "
        "WORLD_SIZE=1 and a free MASTER_PORT.");
  }
  return {};
}

std::string first_host(const std::string& nodelist) {
  const size_t bracket = nodelist.find('[');
  const size_t comma = nodelist.find(',');
  if (bracket == std::string::npos || comma < bracket) return nodelist.substr(0, comma);
  const size_t end = nodelist.find_first_of(",-]", bracket);
  const size_t closing = nodelist.find(']', bracket);
  if (closing == std::string::npos) {
    throw ConfigError(
        "SLURM_STEP_NODELIST: expected a list of hosts as Slurm writes it, got \"{}\"", nodelist);
  }
  const std::string first = nodelist.substr(bracket + 1, end - bracket - 1);
  const size_t rest_end = nodelist.find(',', closing);
  return nodelist.substr(0, bracket) + first +
         nodelist.substr(closing + 1,
                         rest_end == std::string::npos ? rest_end : rest_end - closing - 1);
}

void write_failure_file(const World& world, const std::string& message) noexcept {
  if (world.error_file.empty()) return;
  try {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(
        std::chrono::system_clock::now().time_since_epoch());
    // What torchrun shows of it is the callstack, which stands for Python's traceback there.
    const nlohmann::json json = {
        {"message",
         {{"message", message},
          {"extraInfo", {{"py_callstack", message}, {"timestamp", std::to_string(now.count())}}}}}};
    std::ofstream(world.error_file)
        << json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const std::exception&) {  // the message is on stderr too
  }
}

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
