// SPDX-License-Identifier: MIT
// Who this process is among those that train together, as its launcher says in the environment, and
// the address at which other machines reach this one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace dalle2 {

/// What started the processes of a run.
enum class Launcher {
  kNone,      ///< a single process
  kOurs,      ///< dalle2-train --nproc-per-node
  kTorchrun,  ///< torchrun --no-python
  kSlurm,     ///< srun
};

/// What carries the tensors.
enum class Carrier {
  kByDevice,  ///< NCCL on GPUs, Gloo on the CPU
  kGloo,
  kNccl,
};

/// Rank and size of a run, and where its processes meet.
struct World {
  int rank = 0, size = 1;              ///< of all processes
  int local_rank = 0, local_size = 1;  ///< of those on this machine
  Launcher launcher = Launcher::kNone;
  /// DALLE2_GROUP=gloo or nccl. With it, even a single process takes the code path
  /// of several. NCCL can then be tried on one GPU, and two processes can share a GPU over Gloo.
  Carrier carrier = Carrier::kByDevice;
  std::string store_host = "127.0.0.1";
  uint16_t store_port = 0;
  bool hosts_store = true;  ///< this process keeps the store; else it is kept elsewhere
  std::string store_prefix = "dalle2/";  ///< of keys: apart from those of another program or job
  std::string error_file;  ///< where torchrun looks for the reason of a failure; empty: nowhere

  /// No group is needed.
  bool is_alone() const { return size == 1 && carrier == Carrier::kByDevice; }
  bool is_main() const { return rank == 0; }
  /// "rank 1 of 4"
  std::string name() const { return fmt::format("rank {} of {}", rank, size); }
};

/// A variable of the environment, none if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

/// Whether a launcher has given this process its place by RANK or WORLD_SIZE.
bool has_given_place(const Environment& environment = process_environment());

/// Reads RANK, WORLD_SIZE, MASTER_ADDR, ... of torchrun and of --nproc-per-node, or SLURM_PROCID,
/// SLURM_NTASKS, ... of srun. Without either the process is alone.
/// @throws ConfigError naming a variable that is missing or is not a number, or does not fit
World world_from_environment(const Environment& environment = process_environment());

/// The first host of a list as Slurm writes it: "gpu[03-05,9],login" is gpu03.
std::string first_host(const std::string& slurm_nodelist);

/// Writes the reason of a failure where torchrun looks for it, so that the agent shows it as the
/// root cause. Does nothing without such a place; a file that cannot be written does not matter.
void write_failure_file(const World& world, const std::string& message) noexcept;

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
