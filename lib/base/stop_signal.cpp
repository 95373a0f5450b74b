// SPDX-License-Identifier: MIT
#include "base/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

namespace dalle2 {
namespace {

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};

/// The earlier action of each signal, SIGPIPE last.
struct sigaction before[std::size(kStopSignals) + 1];

void on_signal(int number) {
  if (requested.exchange(number) != 0) _exit(128 + number);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  struct sigaction* old = before;
  for (const int number : kStopSignals) sigaction(number, &action, old++);
  // A reader of our output that goes away (`| tee`, a lost ssh) must not end a run unsaved.
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, old);
}

void uninstall_stop_signals() {
  const struct sigaction* old = before;
  for (const int number : kStopSignals) sigaction(number, old++, nullptr);
  sigaction(SIGPIPE, old, nullptr);
  if (const int number = requested.exchange(0)) raise(number);
}

int stop_requested() {
  return requested.load();
}

void clear_stop_request() {
  requested.store(0);
}

}  // namespace dalle2
