// SPDX-License-Identifier: MIT
#include "base/stop_signal.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>

#include "base/error.h"

namespace dalle2 {
namespace {

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};

/// A reader of our output that goes away (`| tee`, a lost ssh), and a file that may not grow further (`ulimit -f`), become errors
/// of writing: they must not end a run unsaved.
constexpr int kIgnoredSignals[] = {SIGPIPE, SIGXFSZ};

/// The earlier action of each signal, those of kIgnoredSignals last.
struct sigaction before[std::size(kStopSignals) + std::size(kIgnoredSignals)];

/// One request may come by several ways: a service manager signals all processes of a run, and each
/// that has started others passes it on.
constexpr int64_t kOneRequestMs = 1000;

constexpr int64_t kNever = INT64_MAX;  // no moment is later
std::atomic<int64_t> requested_at_ms{kNever};
static_assert(std::atomic<int64_t>::is_always_lock_free);

void on_signal(int number) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ms = int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
  int none = 0;
  if (requested.compare_exchange_strong(none, number)) {
    requested_at_ms = now_ms;
  } else if (now_ms - requested_at_ms > kOneRequestMs) {
    _exit(128 + number);
  }
}

}  // namespace

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  struct sigaction* old = before;
  for (const int number : kStopSignals) {
    sigaction(number, &action, old);
    // Under nohup a run outlives its terminal.
    if (number == SIGHUP && old->sa_handler == SIG_IGN) sigaction(number, old, nullptr);
    ++old;
  }
  action.sa_handler = SIG_IGN;
  for (const int number : kIgnoredSignals) sigaction(number, &action, old++);
}

void uninstall_stop_signals() {
  const struct sigaction* old = before;
  for (const int number : kStopSignals) sigaction(number, old++, nullptr);
  for (const int number : kIgnoredSignals) sigaction(number, old++, nullptr);
  requested_at_ms = kNever;
  if (const int number = requested.exchange(0)) raise(number);
}

bool is_stop_signal(int number) {
  return std::ranges::find(kStopSignals, number) != std::end(kStopSignals);
}

int stop_requested() {
  return requested.load();
}

std::string signal_name(int number) {
  if (number == 0) return "a stop signal to another process";
  const char* const name = sigabbrev_np(number);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

void throw_stopped() {
  throw StoppedError("{}", signal_name(stop_requested()));
}

void clear_stop_request() {
  requested_at_ms = kNever;
  requested.store(0);
}

}  // namespace dalle2
