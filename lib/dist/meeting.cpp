// SPDX-License-Identifier: MIT
// Each rank but the first leaves a number that nobody had before, and rank 0 answers each number with
// its own, the name of the start. What an earlier start left is answered, too, and read by nobody.
#include "dist/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

constexpr std::chrono::milliseconds kFirstPause{5}, kLongestPause{200};

std::string number_of_one() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string answer_key(const std::string& number) {
  return "answer/" + number;
}

/// Asks until `is_over`, with longer and longer pauses; tells now and then what it waits for.
template <class IsOver, class Missing>
void wait_until(const MeetingTimes& times, const IsOver& is_over, const Missing& missing) {
  using MeetingClock = std::chrono::steady_clock;
  const auto begin = MeetingClock::now();
  auto told = begin;
  for (auto pause = kFirstPause; !is_over(); pause = std::min(2 * pause, kLongestPause)) {
    const auto now = MeetingClock::now();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
    if (now - begin > times.limit) {
      throw NetworkError(
          "{} in {} s\n  Look at the log of that process and at its machine: it did not start, or "
          "it cannot reach the others.",
          missing(),
          seconds);
    }
    if (now - told > times.tell) {
      log_warning("dist", "{} in {} s so far", missing(), seconds);
      told = now;
    }
    std::this_thread::sleep_for(pause);
  }
}

/// Of rank 0.
std::string gather_the_others(const World& world, RankStore& store, const MeetingTimes& times) {
  const std::string start = number_of_one();
  std::vector<int> missing;
  for (int rank = 1; rank < world.size; ++rank) missing.push_back(rank);
  std::vector<std::string> answered(static_cast<size_t>(world.size));
  const auto all_came = [&] {
    std::vector<std::string> keys;
    for (const int rank : missing) keys.push_back(fmt::format("number/{}", rank));
    for (const int rank : missing) keys.push_back(fmt::format("came/{}/{}", start, rank));
    const auto texts = store.get(keys);
    std::vector<int> still_missing;
    for (size_t i = 0; i < missing.size(); ++i) {
      std::string& last = answered[static_cast<size_t>(missing[i])];
      if (texts[i] && *texts[i] != last) {
        store.set(answer_key(*texts[i]), start);
        last = *texts[i];
      }
      if (!texts[missing.size() + i]) still_missing.push_back(missing[i]);
    }
    missing = std::move(still_missing);
    return missing.empty();
  };
  wait_until(times, all_came, [&] {
    return fmt::format(
        "{} of {} {} not come to the others",
        fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", ")),
        world.size,
        missing.size() == 1 ? "has" : "have");
  });
  return start;
}

}  // namespace

std::string meet(const World& world, RankStore& store, const MeetingTimes& times) {
  if (world.is_main()) return gather_the_others(world, store, times);
  const std::string own = number_of_one();
  store.set(fmt::format("number/{}", world.rank), own);
  std::string start;
  wait_until(
      times,
      [&] {
        start = store.get({answer_key(own)}).front().value_or("");
        return !start.empty();
      },
      [&] { return fmt::format("rank 0 has not answered rank {}", world.rank); });
  store.set(fmt::format("came/{}/{}", start, world.rank), "1");
  return start;
}

}  // namespace dalle2
