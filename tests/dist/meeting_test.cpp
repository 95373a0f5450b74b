// SPDX-License-Identifier: MIT
#include "dist/meeting.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <future>
#include <set>
#include <thread>

#include "store_double.h"
#include "support/message_of.h"

namespace dalle2 {
namespace {

using namespace std::chrono_literals;

World rank_of(int rank, int size) {
  World world;
  world.rank = rank;
  world.size = size;
  return world;
}

/// The names that each rank of a start got.
std::set<std::string> names_of_start(const std::shared_ptr<StoreContents>& store, int size) {
  std::vector<std::string> names(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        StoreDouble own(store);
        names[static_cast<size_t>(rank)] = meet(rank_of(rank, size), own);
      });
    }
  }
  return {names.begin(), names.end()};
}

std::string message_of(const World& world,
                       const std::shared_ptr<StoreContents>& store,
                       std::chrono::milliseconds limit = 50ms) {
  StoreDouble own(store);
  return test::message_of<NetworkError>([&] { meet(world, own, {.tell = 10s, .limit = limit}); });
}

TEST_CASE("the ranks of a start get one name, and each start another") {
  const auto store = std::make_shared<StoreContents>();
  const auto first = names_of_start(store, 5), second = names_of_start(store, 5);
  CHECK(first.size() == 1);
  CHECK(second.size() == 1);
  CHECK(first != second);
}

TEST_CASE("what a start left that did not come about does not disturb the next") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 3), store) != "nothing was thrown");  // left its number
  CHECK(message_of(rank_of(0, 3), store) != "nothing was thrown");  // answered it
  CHECK(names_of_start(store, 3).size() == 1);
  CHECK(names_of_start(store, 2).size() == 1);  // fewer, after a machine was lost
}

TEST_CASE("a rank that is stopped before all have met stops the others of its launcher") {
  const auto store = std::make_shared<StoreContents>();
  StoreDouble own(store);
  own.set(kStoppedKey, "1");
  for (const int rank : {0, 1}) {
    World world = rank_of(rank, 2);
    world.launcher = Launcher::kOurs;
    CHECK_THROWS_AS(meet(world, own, {.tell = 10s, .limit = 10s}), StoppedError);
  }
  CHECK_THAT(message_of(rank_of(0, 2), store),
             Catch::StartsWith("rank 1 of 2 has not met the others"));
}

/// Lets something happen after the first answer to a question for a key that begins so, before the rank
/// has it; all keys of the question have to be there if `is_complete`.
class InterruptedStore : public StoreDouble {
 public:
  InterruptedStore(std::shared_ptr<StoreContents> contents,
                   std::string prefix,
                   bool is_complete,
                   std::function<void()> meanwhile)
      : StoreDouble(std::move(contents)),
        prefix_(std::move(prefix)),
        is_complete_(is_complete),
        meanwhile_(std::move(meanwhile)) {}

  std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) override {
    auto texts = StoreDouble::get(keys);
    const auto is_asked_for = [&](const auto& key) { return key.starts_with(prefix_); };
    const bool is_it = std::any_of(keys.begin(), keys.end(), is_asked_for) &&
                       (!is_complete_ ||
                        std::all_of(texts.begin(), texts.end(), [](auto& text) { return !!text; }));
    if (is_it && meanwhile_) std::exchange(meanwhile_, nullptr)();
    return texts;
  }

 private:
  std::string prefix_;
  bool is_complete_;
  std::function<void()> meanwhile_;
};

World launched(int rank, int size) {
  World world = rank_of(rank, size);
  world.launcher = Launcher::kOurs;
  return world;
}

TEST_CASE("a rank that hears of a stop as the last comes goes with the others") {
  const auto store = std::make_shared<StoreContents>();
  auto first = std::async(std::launch::async, [&] {
    StoreDouble own(store);
    return meet(launched(0, 2), own);
  });
  // Rank 1 has seen no decision yet; the meeting comes about, and then the launcher tells of a stop.
  InterruptedStore own(store, "decision/", /*is_complete=*/false, [&] {
    first.wait();
    StoreDouble(store).set(kStoppedKey, "1");
  });
  const std::string name = meet(launched(1, 2), own);
  CHECK(name == first.get());
}

TEST_CASE("a rank that leaves as the last comes takes the others with it") {
  const auto store = std::make_shared<StoreContents>();
  std::promise<void> left;
  // Rank 0 sees that all have come, but rank 1 leaves before the first says so.
  auto first = std::async(std::launch::async, [&] {
    InterruptedStore own(store, "came/", /*is_complete=*/true, [&] {
      StoreDouble(store).set(kStoppedKey, "1");
      left.get_future().wait();
    });
    CHECK_THROWS_AS(meet(launched(0, 2), own), StoppedError);
  });
  StoreDouble own(store);
  CHECK_THROWS_AS(meet(launched(1, 2), own), StoppedError);
  left.set_value();
  first.get();
}

TEST_CASE("ranks that do not come are named") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 4), store).find("rank 0 has not answered rank 1 in 0 s") == 0);
  CHECK(message_of(rank_of(0, 4), store).find("ranks 1, 2, 3 of 4 have not met the others in") ==
        0);
  auto other = std::async(std::launch::async, [&] { return message_of(rank_of(2, 3), store, 2s); });
  CHECK_THAT(message_of(rank_of(0, 3), store, 1s),
             Catch::StartsWith("rank 1 of 3 has not met the others in 1 s"));
  CHECK(other.get() != "nothing was thrown");
}

TEST_CASE("an address where nothing listens is named, and waited for") {
  World world = rank_of(1, 2);
  world.store_host = "127.0.0.1";
  const auto wait = [&] { wait_for_store(world, {.tell = 10s, .limit = 50ms}); };
  {
    const StoreServer server;
    world.store_port = server.port();
    CHECK_NOTHROW(wait());
  }
  CHECK_THROWS_WITH(
      wait(),
      Catch::Matches("rank 1 of 2 has not reached rank 0, or its launcher, at 127.0.0.1:[0-9]+ "
                     "\\(Connection refused\\) in 0 s\n[^]*"));
  world.store_host = "nowhere.invalid";
  CHECK_THROWS_WITH(wait(), Catch::Contains(" at nowhere.invalid:"));
}

TEST_CASE("no rank goes on before the last has come") {
  const auto store = std::make_shared<StoreContents>();
  auto first = std::async(std::launch::async, [&] { return message_of(rank_of(0, 3), store, 2s); });
  CHECK_THAT(message_of(rank_of(1, 3), store, 1s),
             Catch::StartsWith("rank 1 met rank 0, but not all other ranks did in 1 s"));
  CHECK(first.get() != "nothing was thrown");
}

Environment with(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

std::string fault_of(std::map<std::string, std::string> variables) {
  const std::string text =
      test::message_of<ConfigError>([&] { world_from_environment(with(std::move(variables))); });
  return text.substr(0, text.find('\n'));
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

TEST_CASE("a process whose transport is named starts as one of several") {
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
