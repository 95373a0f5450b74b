// SPDX-License-Identifier: MIT
// Each rank but the first leaves a number that nobody had before, and rank 0 answers each number with
// its own, the name of the start. What an earlier start left is answered too, and read by nobody.
// When all have read their answers rank 0 says so: none continues before the last has come. One that is
// asked to stop meanwhile may say the opposite, and the first word holds for all.
#include "dist/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"

namespace dalle2 {
namespace {

using MeetingClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFirstPause{5}, kLongestPause{200};
/// A meeting that comes about as the stop signal arrives still does so on all ranks.
constexpr std::chrono::milliseconds kAfterStop{2000};
/// Of one attempt to connect.
constexpr std::chrono::milliseconds kConnectLimit{5000};

std::string number_of_one() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string answer_key(const std::string& number) {
  return "answer/" + number;
}

std::string decision_key(const std::string& start) {
  return "decision/" + start;
}
constexpr const char* kMet = "met";
constexpr const char* kGivenUp = "given up";

/// Asks until `is_over`, with longer and longer pauses; tells now and then what it waits for.
template <class IsOver, class Missing>
void wait_until(const MeetingTimes& times, const IsOver& is_over, const Missing& missing) {
  const auto begin = MeetingClock::now();
  auto told = begin;
  std::optional<MeetingClock::time_point> stopped;
  for (auto pause = kFirstPause; !is_over(); pause = std::min(2 * pause, kLongestPause)) {
    const auto now = MeetingClock::now();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - begin).count();
    if (now - begin > times.limit) {
      throw NetworkError(
          "{} in {} s\n  A missing process did not start, or cannot reach the others. Look at its log "
          "and at its machine.",
          missing(),
          seconds);
    }
    if (now - told > times.tell) {
      log_warning("dist", "{} in {} s so far", missing(), seconds);
      told = now;
    }
    if (stop_requested() != 0 && !stopped) stopped = now;
    if (stopped && now - *stopped > kAfterStop) throw_stopped();
    std::this_thread::sleep_for(pause);
  }
}

class Socket {
 public:
  explicit Socket(const addrinfo& address)
      : descriptor_(::socket(address.ai_family,
                             address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                             address.ai_protocol)) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  /// @return 0 or the number of the error
  int connect_to(const addrinfo& address) {
    if (::connect(descriptor_, address.ai_addr, address.ai_addrlen) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    pollfd event = {.fd = descriptor_, .events = POLLOUT, .revents = 0};
    if (::poll(&event, 1, static_cast<int>(kConnectLimit.count())) <= 0) return ETIMEDOUT;
    int error_number = 0;
    socklen_t size = sizeof(error_number);
    ::getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error_number, &size);
    return error_number;
  }

 private:
  int descriptor_;
};

/// @return why nothing can be reached at the address; empty: something listens there
std::string fault_of_address(const std::string& host, uint16_t port) {
  const addrinfo hints = {.ai_flags = 0,
                          .ai_family = AF_UNSPEC,
                          .ai_socktype = SOCK_STREAM,
                          .ai_protocol = 0,
                          .ai_addrlen = 0,
                          .ai_addr = nullptr,
                          .ai_canonname = nullptr,
                          .ai_next = nullptr};
  addrinfo* first = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
  if (error != 0) return ::gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(first, ::freeaddrinfo);
  std::string fault;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    const int error_number = Socket(*each).connect_to(*each);
    if (error_number == 0) return "";
    fault = errno_text(error_number);
  }
  return fault;
}

[[noreturn]] void throw_another_was_stopped() {
  throw StoppedError("another process of the run was stopped before all had met");
}

/// Only of ranks that one launcher has started: the store of another start may be an older one's.
void throw_if_another_was_stopped(const World& world, RankStore& store) {
  if (world.launcher == Launcher::kOurs && store.get({kStoppedKey}).front()) {
    throw_another_was_stopped();
  }
}

/// Of rank 0.
std::string gather_the_others(const World& world, RankStore& store, const MeetingTimes& times) {
  const std::string start = number_of_one();
  std::vector<int> missing;
  for (int rank = 1; rank < world.size; ++rank) missing.push_back(rank);
  std::vector<std::string> answered(static_cast<size_t>(world.size));
  const auto all_came = [&] {
    throw_if_another_was_stopped(world, store);
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
  try {
    wait_until(times, all_came, [&] {
      return fmt::format(
          "{} of {} {} not met the others",
          fmt::format("{} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", ")),
          world.size,
          missing.size() == 1 ? "has" : "have");
    });
  } catch (const StoppedError&) {
    store.decide(decision_key(start), kGivenUp);  // those that have come learn it at once
    throw;
  }
  if (store.decide(decision_key(start), kMet) != kMet) throw_another_was_stopped();
  return start;
}

/// Of the others, once they have come. A rank that is asked to stop must not leave a meeting that has
/// come about: those it met would take it for stuck.
void wait_for_decision(const World& world,
                       RankStore& store,
                       const std::string& start,
                       const MeetingTimes& times) {
  std::string decision;
  const auto is_decided = [&] {
    decision = store.get({decision_key(start)}).front().value_or("");
    if (decision.empty()) throw_if_another_was_stopped(world, store);
    return !decision.empty();
  };
  try {
    wait_until(
        {.tell = times.limit, .limit = times.limit},  // rank 0 tells who is missing
        is_decided,
        [&] { return fmt::format("rank {} met rank 0, but not all other ranks did", world.rank); });
  } catch (const StoppedError&) {
    if (store.decide(decision_key(start), kGivenUp) == kMet) return;
    throw;
  }
  if (decision != kMet) throw_another_was_stopped();
}

}  // namespace

void wait_for_store(const World& world, const MeetingTimes& times) {
  std::string fault;
  wait_until(
      times,
      [&] {
        fault = fault_of_address(world.store_host, world.store_port);
        return fault.empty();
      },
      [&] {
        return fmt::format("{} has not reached rank 0, or its launcher, at {}:{} ({})",
                           world.name(),
                           world.store_host,
                           world.store_port,
                           fault);
      });
}

std::string meet(const World& world, RankStore& store, const MeetingTimes& times) {
  if (world.is_main()) return gather_the_others(world, store, times);
  const std::string own = number_of_one();
  store.set(fmt::format("number/{}", world.rank), own);
  std::string start;
  wait_until(
      times,
      [&] {
        throw_if_another_was_stopped(world, store);
        start = store.get({answer_key(own)}).front().value_or("");
        return !start.empty();
      },
      [&] { return fmt::format("rank 0 has not answered rank {}", world.rank); });
  store.set(fmt::format("came/{}/{}", start, world.rank), "1");
  wait_for_decision(world, store, start, times);
  return start;
}

}  // namespace dalle2
