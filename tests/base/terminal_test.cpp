// SPDX-License-Identifier: MIT

#include <pty.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>

namespace dalle2 {
namespace {

TEST_CASE("a line that fits stays as it is") {
  CHECK(wrapped("", 20) == "");
  CHECK(wrapped("12345678901234567890", 20) == "12345678901234567890");
  CHECK(wrapped("one\n  two\n", 20) == "one\n  two\n");
}

TEST_CASE("a long line is broken between words, and goes on two columns further in") {
  CHECK(wrapped("the samples have changed: epoch 3 starts over", 20) ==
        "the samples have\n  changed: epoch 3\n  starts over");
  CHECK(wrapped("error: bad\n  expected a whole number, got x", 20) ==
        "error: bad\n  expected a whole\n    number, got x");
  CHECK(wrapped("12345678901234567890 1", 20) == "12345678901234567890\n  1");
}

TEST_CASE("a line of values is broken between two of them") {
  CHECK(wrapped("step 38  loss 0.8 0.9  lr 1e-3", 24) == "step 38  loss 0.8 0.9\n  lr 1e-3");
}

TEST_CASE("a word without a blank stays whole") {
  CHECK(wrapped("saved as a/very/long/path/of/a/file.pth at once", 20) ==
        "saved as\n  a/very/long/path/of/a/file.pth\n  at once");
  CHECK(wrapped("  a/very/long/path/of/a/file.pth", 20) == "  a/very/long/path/of/a/file.pth");
  CHECK(wrapped(std::string(40, ' ') + "a b", 20) ==
        std::string(40, ' ') + "a\n" + std::string(42, ' ') + "b");
}

TEST_CASE("blanks at the end of a long line are no further line") {
  CHECK(wrapped("12345678901234567890   ", 20) == "12345678901234567890   ");
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
