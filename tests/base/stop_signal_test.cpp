// SPDX-License-Identifier: MIT
#include "base/stop_signal.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdio>

namespace dalle2 {
namespace {

/// Exit status of a child that runs `body`, which returns its exit code.
template <class Body>
int exit_code_of(const Body& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("without a signal no stop is requested") {
  CHECK(stop_requested() == 0);
}

TEST_CASE("each of the signals asks for a stop and lets the process live") {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP}) {
    CAPTURE(number);
    const int seen = exit_code_of([number] {
      ::signal(SIGHUP, SIG_DFL);  // tests may run under nohup
      install_stop_signals();
      ::raise(number);
      return stop_requested();
    });
    CHECK(seen == number);
  }
}

TEST_CASE("a terminal that closes does not stop a run under nohup") {
  const int code = exit_code_of([] {
    ::signal(SIGHUP, SIG_IGN);
    install_stop_signals();
    ::raise(SIGHUP);
    return stop_requested() == 0 ? 7 : 1;
  });
  CHECK(code == 7);
}

TEST_CASE("a second signal ends the process at once") {
  const int code = exit_code_of([] {
    install_stop_signals();
    ::raise(SIGUSR1);
    ::usleep(1'100'000);
    ::raise(SIGTERM);
    return 1;
  });
  CHECK(code == 128 + SIGTERM);
}

TEST_CASE("a request that comes by two ways is one request") {
  const int seen = exit_code_of([] {
    install_stop_signals();
    ::raise(SIGUSR1);
    ::raise(SIGTERM);
    return stop_requested();
  });
  CHECK(seen == SIGUSR1);
}

TEST_CASE("work that a signal may end is ended by one that came before it was known") {
  const auto signal_after = [](bool uninstalled_first) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::signal(SIGTERM, SIG_DFL);  // the test's runner has handlers of its own
      install_stop_signals();
      if (!uninstalled_first) ::raise(SIGTERM);
      uninstall_stop_signals();
      if (uninstalled_first) ::raise(SIGTERM);
      ::_exit(1);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : -1;
  };
  CHECK(signal_after(/*uninstalled_first=*/true) == SIGTERM);
  CHECK(signal_after(/*uninstalled_first=*/false) == SIGTERM);
}

TEST_CASE("what was ignored before the handlers is ignored after them") {
  const int code = exit_code_of([] {
    ::signal(SIGINT, SIG_IGN);  // as a shell does for a job in the background
    ::signal(SIGPIPE, SIG_DFL);
    install_stop_signals();
    uninstall_stop_signals();
    ::raise(SIGINT);
    const bool pipe_ends_again = ::signal(SIGPIPE, SIG_IGN) == SIG_DFL;
    return stop_requested() == 0 && pipe_ends_again ? 7 : 1;
  });
  CHECK(code == 7);
}

TEST_CASE("a request that was cleared is forgotten") {
  const int code = exit_code_of([] {
    install_stop_signals();
    ::raise(SIGTERM);
    clear_stop_request();
    const bool forgotten = stop_requested() == 0;
    ::raise(SIGINT);
    return forgotten ? stop_requested() : 0;
  });
  CHECK(code == SIGINT);
}

TEST_CASE("a read is taken up again after the signal") {
  const int code = exit_code_of([] {
    install_stop_signals();
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    const pid_t parent = ::getpid();
    if (::fork() == 0) {
      ::usleep(100'000);
      ::kill(parent, SIGTERM);
      ::usleep(100'000);
      ::_exit(::write(ends[1], "x", 1) == 1 ? 0 : 1);
    }
    char letter = 0;
    const bool read = ::read(ends[0], &letter, 1) == 1;
    return read && stop_requested() == SIGTERM ? 0 : 1;
  });
  CHECK(code == 0);
}

TEST_CASE("a file that may not grow further is an error of writing, and no end of the process") {
  const int code = exit_code_of([] {
    install_stop_signals();
    std::FILE* const file = std::tmpfile();
    const rlimit limit{16, 16};
    if (file == nullptr || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    const std::string text(32, 'x');
    const ssize_t first = ::write(::fileno(file), text.data(), text.size());
    return first == 16 && ::write(::fileno(file), "x", 1) == -1 && errno == EFBIG ? 0 : 2;
  });
  CHECK(code == 0);
}

TEST_CASE("a signal is called by its name") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(SIGINT) == "SIGINT");
  CHECK(signal_name(SIGUSR1) == "SIGUSR1");
  CHECK(signal_name(999) == "signal 999");
  CHECK(signal_name(0) == "a stop signal to another process");
}

TEST_CASE("a reader of our output that goes away does not end the process") {
  const int code = exit_code_of([] {
    install_stop_signals();
    int ends[2];
    if (::pipe(ends) != 0) return 1;
    ::close(ends[0]);
    return ::write(ends[1], "x", 1) == -1 ? 0 : 2;
  });
  CHECK(code == 0);
}

}  // namespace
}  // namespace dalle2
