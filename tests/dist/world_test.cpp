// SPDX-License-Identifier: MIT
#include "dist/world.h"

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"

namespace dalle2 {
namespace {

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

std::string fault_of(std::map<std::string, std::string> variables) {
  try {
    world_from_environment(with(std::move(variables)));
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  }
  return "";
}

TEST_CASE("without variables of a launcher the process is alone") {
  const World world = world_from_environment(with({{"MASTER_ADDR", "elsewhere"}}));
  CHECK(world.is_alone());
  CHECK(world.is_main());
  CHECK(world.launcher == Launcher::kNone);
}

TEST_CASE("torchrun's variables are read; the store is the agent's") {
  const World world =
      world_from_environment(with({{"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "gpu07"},
                                   {"MASTER_PORT", "29501"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                                   {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"}}));
  CHECK(world.rank == 5);
  CHECK(world.size == 8);
  CHECK(world.local_rank == 1);
  CHECK(world.local_size == 4);
  CHECK(world.launcher == Launcher::kTorchrun);
  CHECK(world.store_host == "gpu07");
  CHECK(world.store_port == 29501);
  CHECK_FALSE(world.hosts_store);
  CHECK(world.store_prefix == "dalle2/");
  CHECK(world.error_file == "/tmp/error.json");
  CHECK(world.name() == "rank 5 of 8");
}

TEST_CASE("without an agent rank 0 keeps the store") {
  const auto variables = [](const std::string& rank) {
    return with({{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  };
  CHECK(world_from_environment(variables("0")).hosts_store);
  CHECK_FALSE(world_from_environment(variables("1")).hosts_store);
}

TEST_CASE("a process that is told what carries its tensors goes the way of several") {
  const auto world_with = [](const std::string& group) {
    return world_from_environment(with(
        {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "29500"}, {"DALLE2_GROUP", group}}));
  };
  CHECK(world_with("").is_alone());
  CHECK(world_with("gloo").carrier == Carrier::kGloo);
  CHECK_FALSE(world_with("gloo").is_alone());
  CHECK(world_with("gloo").store_port == 29500);
  CHECK(world_with("nccl").carrier == Carrier::kNccl);
}

TEST_CASE("variables that do not fit are errors that name them") {
  CHECK(fault_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"DALLE2_GROUP", "mpi"}}) ==
        "DALLE2_GROUP: expected \"gloo\" or \"nccl\", got \"mpi\"");
  CHECK_THAT(fault_of({{"DALLE2_GROUP", "gloo"}}),
             Catch::StartsWith("DALLE2_GROUP: is set, but this process has no place among others"));
  CHECK(
      fault_of({{"RANK", "0"}}) ==
      "WORLD_SIZE is not set, although other variables say that several processes train together.");
  CHECK(fault_of({{"RANK", "x"}, {"WORLD_SIZE", "2"}}) ==
        "RANK: expected a whole number from 0 to 1048576, got \"x\" (an environment variable that "
        "the launcher of the processes sets)");
  CHECK(fault_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) == "RANK is 2, but there are 2 processes");
  CHECK(fault_of(
            {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
        "LOCAL_RANK is 3, but this machine has 2 processes");
  CHECK(fault_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}) ==
        "MASTER_PORT: expected a whole number from 1 to 65535, got \"70000\" (an environment "
        "variable "
        "that the launcher of the processes sets)");
}

TEST_CASE("srun's variables are read; host and port follow from the job") {
  const World world = world_from_environment(with({{"SLURM_PROCID", "3"},
                                                   {"SLURM_NTASKS", "4"},
                                                   {"SLURM_LOCALID", "1"},
                                                   {"SLURM_STEP_ID", "0"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                                                   {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                                                   {"SLURM_RESTART_COUNT", "1"},
                                                   {"SLURM_JOB_ID", "1234567"}}));
  CHECK(world.launcher == Launcher::kSlurm);
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.local_rank == 1);
  CHECK(world.local_size == 2);
  CHECK(world.store_host == "gpu07");
  CHECK(world.store_port == 15000 + 4567);
  CHECK_FALSE(world.hosts_store);
  CHECK(world.store_prefix == "dalle2/1234567.0/");
}

TEST_CASE("steps of a job meet at ports of their own") {
  const auto port_of = [](const std::string& step) {
    return world_from_environment(with({{"SLURM_PROCID", "0"},
                                        {"SLURM_NTASKS", "2"},
                                        {"SLURM_STEP_ID", step},
                                        {"SLURM_JOB_ID", "9900"}}))
        .store_port;
  };
  CHECK(port_of("0") == 15000 + 9900);
  CHECK(port_of("1") == 15000 + 111);
}

TEST_CASE("a batch script of Slurm is a process that is alone") {
  CHECK(world_from_environment(with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})).is_alone());
}

TEST_CASE("the first host of Slurm's lists") {
  CHECK(first_host("node1") == "node1");
  CHECK(first_host("node1,node2") == "node1");
  CHECK(first_host("gpu[03-05,9],login") == "gpu03");
  CHECK(first_host("gpu[7]") == "gpu7");
  CHECK(first_host("rack[2-3]-gpu.cluster,x") == "rack2-gpu.cluster");
  CHECK(first_host("login,gpu[1-2]") == "login");
  CHECK_THROWS_AS(first_host("gpu[1-2"), ConfigError);
}

}  // namespace
}  // namespace dalle2
