// SPDX-License-Identifier: MIT
#include "dist/rank_board.h"

#include <catch2/catch.hpp>

#include "dist/rank_launcher.h"
#include "dist/world.h"

namespace dalle2 {
namespace {

constexpr double kHang = 60;

RankPlace waiting(int64_t sequence, const std::string& what, double seconds) {
  return {
      .beats = 1, .sequence = sequence, .step = 5, .what = what, .waits = true, .seconds = seconds};
}
RankPlace behind(int64_t sequence, const std::string& what, double seconds) {
  RankPlace place = waiting(sequence, what, seconds);
  place.waits = false;
  return place;
}

std::string report(const std::vector<std::optional<RankPlace>>& places, double silent = 0) {
  return find_hang(0, places, {0, silent}, kHang).value_or("");
}

TEST_CASE("nothing is reported while the ranks go on") {
  CHECK(report({behind(3, "loss", 300), waiting(2, "loss", 90)}) ==
        "");  // who does not wait is silent
  CHECK(report({waiting(3, "loss", 59), behind(2, "loss", 59)}) == "");
  CHECK(report({waiting(3, "loss", 59), behind(2, "loss", 1)}) == "");
  CHECK(report({waiting(3, "loss", 1), std::nullopt}, 59) == "");
}

TEST_CASE("a rank that does not come is named with its place") {
  CHECK(
      report({waiting(3, "loss", 61), behind(2, "samples of the step", 62)}) ==
      "rank 0 waits in \"loss\" (number 3, step 5) for 61 s:\n"
      "  rank 1 lives, but does not come: behind \"samples of the step\" (number 2, step 5) for 62 s");
}

TEST_CASE("a rank that is not heard of is reported after half the time") {
  const std::vector<std::optional<RankPlace>> places = {waiting(3, "loss", 31),
                                                        behind(2, "stop", 0)};
  CHECK(report(places, 30) == "");
  CHECK(
      report(places, 31) ==
      "rank 0 waits in \"loss\" (number 3, step 5) for 31 s:\n"
      "  rank 1 has not been heard of for 31 s: the process is gone or stopped, or the network is "
      "down; it was behind \"stop\" (number 2, step 5) for 0 s");
}

TEST_CASE("silence is no fault while collectives go on: the store alone does not answer") {
  const RankPlace other = behind(2, "stop", 0);
  CHECK(report({waiting(3, "loss", 1.9), other}, 300) == "");
  CHECK(
      report({waiting(3, "loss", 2.1), other}, 300) ==
      "rank 0 waits in \"loss\" (number 3, step 5) for 2 s:\n"
      "  rank 1 has not been heard of for 300 s: the process is gone or stopped, or the network is "
      "down; it was behind \"stop\" (number 2, step 5) for 0 s");
}

TEST_CASE("a rank that says what it is busy with has ten times as long") {
  RankPlace busy = behind(2, "stop", 599);
  busy.busy = "saving";
  CHECK(report({waiting(3, "loss", 599), busy}) == "");
  busy.seconds = 601;
  CHECK(report({waiting(3, "loss", 601), busy}) ==
        "rank 0 waits in \"loss\" (number 3, step 5) for 601 s:\n"
        "  rank 1 is stuck in: saving; behind \"stop\" (number 2, step 5) for 601 s");
}

TEST_CASE("a rank that ended is reported at once, with its reason") {
  RankPlace ended = behind(2, "stop", 1);
  ended.failure = "shards/3.tar: damaged";
  CHECK(report({waiting(3, "loss", 1), ended}) ==
        "rank 0 waits in \"loss\" (number 3, step 5) for 1 s:\n"
        "  rank 1 ended with an error: shards/3.tar: damaged");
}

TEST_CASE("ranks in different operations are named") {
  CHECK(report({waiting(3, "loss", 61), waiting(3, "stop", 61)}) ==
        "rank 0 waits in \"loss\" (number 3, step 5) for 61 s:\n"
        "  rank 1 meets this one in another operation: in \"stop\" (number 3, step 5) for 61 s");
}

TEST_CASE("where all ranks are in one operation for long, the network is named") {
  CHECK(report({waiting(3, "loss", 59), waiting(3, "loss", 59)}) == "");
  CHECK(report({waiting(3, "loss", 61), waiting(3, "loss", 61)}) ==
        "rank 0 waits in \"loss\" (number 3, step 5) for 61 s:\n"
        "  all ranks are in it: look at the network between them");
  // One that has left it was in it, too; a large sum has ten seconds in any case.
  CHECK(report({waiting(3, "loss", 61), behind(3, "loss", 1)}) != "");
  const std::vector<std::optional<RankPlace>> both = {waiting(3, "loss", 9), waiting(3, "loss", 9)};
  CHECK(find_hang(0, both, {0, 0}, /*hang_seconds=*/2) == std::nullopt);
}

TEST_CASE("of an error the reason is its first line, and what NCCL says last") {
  CHECK(reason_of("Connection reset by peer\nException raised from x") ==
        "Connection reset by peer");
  CHECK(reason_of(
            "invalid usage\nncclInvalidUsage: about\nLast error:\n\nDuplicate GPU detected : rank "
            "0 and rank 1 both on CUDA device 1000\n") ==
        "invalid usage; Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000");
}

TEST_CASE("a place survives its way through the store") {
  RankPlace place = waiting(7, "gradients of \"unet 0\"", 2.5);
  place.busy = "saving";
  place.failure = "bad \xff byte";
  place.ended = true;
  const RankPlace read = RankPlace::from_json(place.to_json());
  CHECK(read.sequence == 7);
  CHECK(read.what == place.what);
  CHECK(read.waits);
  CHECK(read.seconds == 2.5);
  CHECK(read.busy == "saving");
  CHECK(read.failure == "bad \xef\xbf\xbd byte");
  CHECK(read.ended);
}

TEST_CASE("the exit code of a run is that of the rank that failed by itself") {
  CHECK(exit_code_of({{0, 0, 0}, {1, 0, 0}}) == ExitCode::kDone);
  CHECK(exit_code_of({{0, 75, 0}, {1, 75, 0}}) == ExitCode::kStopped);
  CHECK(exit_code_of({{0, 6, 0}, {1, 3, 0}}) == ExitCode::kData);
  CHECK(exit_code_of({{1, 4, 0}, {0, 3, 0}}) == ExitCode::kNonFinite);
  CHECK(exit_code_of({{1, 0, 9}, {0, 6, 0}}) == ExitCode::kNetwork);
  CHECK(exit_code_of({{1, 0, 9}, {0, 75, 0}}) == ExitCode::kNetwork);
}

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
