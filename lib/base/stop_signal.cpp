// SPDX-License-Identifier: MIT
#include "base/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

namespace dalle2 {
namespace {

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only touch lock-free atomics");

void on_signal(int number) {
  if (requested.exchange(number) != 0) _exit(128 + number);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) sigaction(number, &action, nullptr);
  // A reader of our output that goes away (`| tee`, a lost ssh) must not end a run unsaved.
  signal(SIGPIPE, SIG_IGN);
}

int stop_requested() {
  return requested.load();
}

void clear_stop_request() {
  requested.store(0);
}

}  // namespace dalle2
