// SPDX-License-Identifier: MIT
#include "base/log.h"

#include <pty.h>
#include <sys/wait.h>
#include <catch2/catch.hpp>
#include <sstream>
#include <thread>

#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

/// Runs `body` in a child whose stdout is `out` and stderr `err`, and waits for it.
template <class Body>
void run_child(int out, int err, const Body& body) {
  std::fflush(stdout);  // what Catch2 has printed is not the child's to print again
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(out, STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    body();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(status == 0);
}

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// What `body` writes to stdout and stderr.
template <class Body>
std::pair<std::string, std::string> outputs_of(const Body& body) {
  const test::TempDir folder;
  std::FILE* out = std::fopen((folder / "out").c_str(), "w");
  std::FILE* err = std::fopen((folder / "err").c_str(), "w");
  REQUIRE((out != nullptr && err != nullptr));
  run_child(::fileno(out), ::fileno(err), body);
  std::fclose(out);
  std::fclose(err);
  return {content_of(folder / "out"), content_of(folder / "err")};
}

TEST_CASE("facts go to stdout with their tag, warnings and errors to stderr with their level") {
  const auto [out, err] = outputs_of([] {
    log_info("data", "{} shards", 3);
    log_info("", "no tag");
    log_info("track", "removed {}", "a\x1b[2J\nerror: b\xc2\x9b");
    log_info("config", "a.json:\n  {{}}");
    log_warning("data", "shard {} is short", "a.tar");
    log_error("", "stopped");
    log_live("never seen off a terminal");
  });
  CHECK(out ==
        "[data] 3 shards\nno tag\n[track] removed a\\x1b[2J\\x0aerror: b\\x9b\n"
        "[config] a.json:\n  {}\n");
  CHECK(err == "[data] warning: shard a.tar is short\nerror: stopped\n");
}

/// What `body` shows on a terminal of `columns`.
template <class Body>
std::string shown_on_terminal(unsigned short columns, const Body& body) {
  int master = -1;
  int terminal = -1;
  winsize size = {};
  size.ws_col = columns;
  REQUIRE(::openpty(&master, &terminal, nullptr, nullptr, &size) == 0);
  run_child(terminal, terminal, [&] {
    ::setenv("TERM", "xterm", 1);
    body();
  });
  ::close(terminal);
  std::string shown;
  char bytes[256];
  for (ssize_t read = 0; (read = ::read(master, bytes, sizeof bytes)) > 0;)
    shown.append(bytes, static_cast<size_t>(read));
  ::close(master);
  return shown;
}

TEST_CASE("a line on a terminal moves the live line out of the way and brings it back") {
  const std::string clear = "\r\x1b[K";
  CHECK(
      shown_on_terminal(80, [] {
        log_live("10 %");
        log_info("train", "saved");
        log_live("20 %");
        log_live("");
        log_info("train", "done");
      }) == "10 %" + clear + "[train] saved\r\n10 %" + clear + "20 %" + clear + "[train] done\r\n");
}

TEST_CASE("no line of a terminal is longer than it is wide, and the last column stays free") {
  CHECK(shown_on_terminal(30,
                          [] {
                            log_live("123456789 123456789 123456789 123456789");
                            log_live("");
                            log_warning("data", "the shard a.tar is short");
                            log_info("data", "123456789 123456789 12");
                            log_info("data", "123456789 123456789 123");
                          }) ==
        "123456789 123456789 123456789\r\x1b[K[data] warning: the shard\r\n  a.tar is short\r\n"
        "[data] 123456789 123456789 12\r\n[data] 123456789 123456789\r\n  123\r\n");
}

TEST_CASE("once a command's result has stdout, facts go to stderr with the warnings") {
  const auto [out, err] = outputs_of([] {
    log_to_stderr();
    log_info("order", "epoch 0");
    log_warning("data", "short");
    log_error("", "stopped");
  });
  CHECK(out.empty());
  CHECK(err == "[order] epoch 0\n[data] warning: short\nerror: stopped\n");
}

TEST_CASE("lines of many threads arrive whole") {
  test::CapturedLog log;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      for (int j = 0; j < 100; ++j) log_info("t", "{}-{}", i, j);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(log.lines().size() == 800);
  CHECK(log.count("7-99") == 1);
}

TEST_CASE("braces in a user's text pass through a line unchanged") {
  test::CapturedLog log;
  log_warning("config", "{}", "{epoch} {");
  REQUIRE(log.lines().size() == 1);
  CHECK(log.lines()[0].text == "{epoch} {");
  CHECK(log.lines()[0].tag == "config");
  CHECK(log.count(LogLevel::kWarning) == 1);
}

TEST_CASE("a line is broken between words or values, and goes on two columns further in") {
  struct Line {
    std::string text, shown;
    int columns = 20;
  };
  const std::string blanks(40, ' '), full = "12345678901234567890";
  for (const auto& [text, shown, columns] :
       std::vector<Line>{{"", ""},
                         {full, full},
                         {"one\n  two\n", "one\n  two\n"},
                         {"the samples have changed: epoch 3 starts over",
                          "the samples have\n  changed: epoch 3\n  starts over"},
                         {"error: bad\n  expected a whole number, got x",
                          "error: bad\n  expected a whole\n    number, got x"},
                         {full + " 1", full + "\n  1"},
                         {"step 38  loss 0.8 0.9  lr 1e-3", "step 38  loss 0.8 0.9\n  lr 1e-3", 24},
                         {"saved as a/very/long/path/of/a/file.pth at once",
                          "saved as\n  a/very/long/path/of/a/file.pth\n  at once"},
                         {"  a/very/long/path/of/a/file.pth", "  a/very/long/path/of/a/file.pth"},
                         {blanks + "a b", blanks + "a\n" + blanks + "  b"},
                         {full + "   ", full + "   "}}) {
    CHECK(wrapped(text, columns) == shown);
  }
}

TEST_CASE("letters of several bytes are one column") {
  const std::string letters = "\xc3\xa4\xc3\xb6\xc3\xbc\xe2\x82\xac";  // four
  CHECK(wrapped(letters + letters + letters + letters + letters, 20) ==
        letters + letters + letters + letters + letters);
  CHECK(clipped(letters, 3) == letters.substr(0, 6));
  CHECK(clipped(letters, 4) == letters);
  CHECK(clipped(letters, 0) == "");
  CHECK(clipped("abc", 80) == "abc");
}

TEST_CASE("every line of a text fits if its words do") {
  std::string text = "[track] warning:";
  for (int i = 0; i < 60; ++i) text += (i % 7 == 0 ? "  w" : " word") + std::to_string(i);
  for (int columns = 20; columns < 120; ++columns) {
    CAPTURE(columns);
    const std::string shown = wrapped(text, columns);
    for (size_t begin = 0; begin < shown.size();) {
      const size_t end = std::min(shown.find('\n', begin), shown.size());
      REQUIRE(end - begin <= static_cast<size_t>(columns));
      begin = end + 1;
    }
  }
}

TEST_CASE("the width is the terminal's, else that of COLUMNS, else 80") {
  int master = -1, terminal = -1;
  winsize size = {};
  size.ws_col = 97;
  REQUIRE(::openpty(&master, &terminal, nullptr, nullptr, &size) == 0);
  ::setenv("COLUMNS", "61", 1);
  CHECK(terminal_columns(terminal) == 97);
  CHECK(terminal_columns(-1) == 61);
  for (const char* nonsense : {"", "0", "-5", "wide", "99999999"}) {
    ::setenv("COLUMNS", nonsense, 1);
    CHECK(terminal_columns(-1) == 80);
  }
  ::unsetenv("COLUMNS");
  CHECK(terminal_columns(-1) == 80);

  const char* kind = std::getenv("TERM");
  const std::string before = kind == nullptr ? "" : kind;
  ::setenv("TERM", "xterm", 1);
  CHECK(is_live_terminal(terminal));
  ::setenv("TERM", "dumb", 1);
  CHECK_FALSE(is_live_terminal(terminal));
  kind == nullptr ? ::unsetenv("TERM") : ::setenv("TERM", before.c_str(), 1);
  CHECK_FALSE(is_live_terminal(-1));
  ::close(terminal);
  ::close(master);
}

}  // namespace
}  // namespace dalle2
