// SPDX-License-Identifier: MIT
#include "tracker/log/progress.h"

#include <catch2/catch.hpp>
#include <limits>

namespace dalle2 {
namespace {

/// A progress display whose time and lines the test holds.
struct Watched {
  double now = 100;
  std::vector<std::string> live, plain;

  ProgressOptions options(bool terminal, bool quiet = false) {
    ProgressOptions result;
    result.terminal = terminal;
    result.quiet = quiet;
    result.clock = [this] { return now; };
    result.show_live = [this](const std::string& line) { live.push_back(line); };
    result.print_plain = [this](const std::string& line) { plain.push_back(line); };
    return result;
  }
};

ProgressState at_sample(int64_t sample, int64_t epoch = 0) {
  ProgressState state;
  state.epoch = epoch;
  state.epochs = 2;
  state.sample = sample;
  state.samples_per_epoch = 1000;
  state.losses = {0.02134};
  return state;
}

TEST_CASE("the line has epoch, bar, samples, loss, rate and time left") {
  CHECK(progress_line(at_sample(500), 50.04, {.width = 100}) ==
        "epoch 0/2 [==============>             ] 500/1,000  loss 0.02134  50 samples/s  ETA 0:29");
  CHECK(progress_line(at_sample(500, 1), 0, {}) == "epoch 1/2, 500/1,000 samples  loss 0.02134");
  // More samples than an epoch should have.
  CHECK(progress_line(at_sample(1200, 1), 50, {.width = 100})
            .find("[============================]") != std::string::npos);
  CHECK(progress_line(at_sample(1200, 1), 50, {}).find("ETA 0:00") != std::string::npos);
}

TEST_CASE("the bar gives way to the figures on a narrow terminal, and no line wraps") {
  for (int width = 1; width < 140; ++width) {
    CAPTURE(width);
    CHECK(static_cast<int>(progress_line(at_sample(500), 50, {.width = width}).size()) <
          std::max(width, 2));
  }
  CHECK(progress_line(at_sample(500), 50, {.width = 66}) ==
        "epoch 0/2, 500/1,000  loss 0.02134  50 samples/s  ETA 0:30");
}

TEST_CASE("what is unknown is left out") {
  ProgressState state;
  state.sample = 12345;
  CHECK(progress_line(state, 0, {.width = 80}) == "epoch 0, 12,345 samples");
  CHECK(progress_line(state, 0, {}) == "epoch 0, 12,345 samples");
  state.losses = {0.5, std::numeric_limits<double>::quiet_NaN()};
  CHECK(progress_line(state, 1234, {}) == "epoch 0, 12,345 samples  loss 0.5 -  1,234 samples/s");
}

TEST_CASE("beside records the line says how far the run is, and repeats none of their values") {
  ProgressState state = at_sample(500);
  state.skipped = 3;
  CHECK(progress_line(state, 50, {.width = 0, .with_values = false}) ==
        "epoch 0/2, 500/1,000 samples  ETA 0:30");
  CHECK(progress_line(state, 50, {.width = 80, .with_values = false}) ==
        "epoch 0/2 [==============>             ] 500/1,000  ETA 0:30");
}

TEST_CASE(
    "a loss that is no number leaves the last one that was, beside the count of what was skipped") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/true));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  ProgressState state;
  for (const std::vector<double>& losses :
       {std::vector<double>{0.5, nan}, {nan, 0.25}, {inf, nan}}) {
    state.sample += 8;
    state.losses = losses;
    progress.update(state);
    ++state.skipped;
    watched.now += 1;
  }
  REQUIRE(watched.live.size() == 3);
  CHECK(watched.live[0] == "epoch 0, 8 samples  loss 0.5 -");
  CHECK(watched.live[1].starts_with("epoch 0, 16 samples  loss 0.5 0.25  1 skipped"));
  CHECK(watched.live[2].starts_with("epoch 0, 24 samples  loss 0.5 0.25  2 skipped"));
}

TEST_CASE("between two records the last loss stays on the line") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/true));
  progress.update(at_sample(10));
  watched.now += 1;
  ProgressState state = at_sample(20);
  state.losses = {};
  progress.update(state);
  CHECK(watched.live.back().find("20/1,000  loss 0.02134") != std::string::npos);
}

TEST_CASE("off a terminal a plain line comes at the first step, at intervals and at the end") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/false));
  for (int step = 0; step <= 25; ++step) {
    progress.update(at_sample(step * 10));
    watched.now += 1;
  }
  REQUIRE(watched.plain.size() == 3);  // at 0, 10 and 20 s
  CHECK(watched.plain[1].find("100/1,000") != std::string::npos);
  CHECK(watched.plain[1].find("  10 samples/s") != std::string::npos);
  progress.finish();
  progress.finish();
  REQUIRE(watched.plain.size() == 4);
  CHECK(watched.plain[3].find("250/1,000") != std::string::npos);
  CHECK(watched.live.empty());
}

TEST_CASE("on a terminal one line lives, and is cleared at the end") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/true));
  for (int step = 0; step < 100; ++step) {
    progress.update(at_sample(step));
    watched.now += 0.01;
  }
  CHECK(watched.live.size() >= 9);
  CHECK(watched.live.size() <= 11);  // ten a second
  CHECK(watched.plain.empty());
  progress.finish();
  CHECK(watched.live.back().empty());
  REQUIRE(watched.plain.size() == 1);
  CHECK(watched.plain[0].find("99/1,000") != std::string::npos);
}

TEST_CASE("an error that ends the run clears the live line") {
  Watched watched;
  { Progress(watched.options(/*terminal=*/true)).update(at_sample(1)); }
  REQUIRE(watched.live.size() == 2);
  CHECK(watched.live.back().empty());
}

TEST_CASE("off a terminal, beside records, a plain line comes each minute and at the end") {
  Watched watched;
  ProgressOptions options = watched.options(/*terminal=*/false);
  options.beside_records = true;
  Progress progress(options);
  for (int step = 0; step <= 130; ++step) {
    progress.update(at_sample(step));
    watched.now += 1;
  }
  REQUIRE(watched.plain.size() == 2);  // at 60 and 120 s: of the first step there is a record
  CHECK(watched.plain[0] == "epoch 0/2, 60/1,000 samples  ETA 32:20");
  progress.finish();
  REQUIRE(watched.plain.size() == 3);
  CHECK(watched.plain[2] == "epoch 0/2, 130/1,000 samples  ETA 31:10");
}

TEST_CASE("on a terminal a stage takes the live line, and gives it back") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/true));
  progress.update(at_sample(1));
  watched.live.clear();
  for (int i = 0; i < 25; ++i) {
    progress.stage("validation of epoch 0: " + std::to_string(i));
    watched.now += 0.01;
  }
  CHECK(watched.live == std::vector<std::string>{"validation of epoch 0: 0",
                                                 "validation of epoch 0: 10",
                                                 "validation of epoch 0: 20"});
  progress.pause();
  CHECK(watched.live.back().empty());
  CHECK(watched.plain.empty());
}

TEST_CASE("off a terminal a stage has a line at intervals, and a short one none") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/false));
  for (int stage = 0; stage < 2; ++stage) {
    for (int second = 0; second < 8; ++second, watched.now += 1) progress.stage("drawing");
    progress.pause();
  }
  CHECK(watched.plain.empty());
  for (int second = 0; second < 25; ++second, watched.now += 1) {
    progress.stage("drawing " + std::to_string(second));
  }
  CHECK(watched.plain == std::vector<std::string>{"drawing 10", "drawing 20"});
  CHECK(watched.live.empty());
}

TEST_CASE("quiet shows nothing") {
  for (const bool terminal : {true, false}) {
    Watched watched;
    {
      Progress progress(watched.options(terminal, /*quiet=*/true));
      progress.update(at_sample(1));
      watched.now += 60;
      progress.update(at_sample(2));
      for (int i = 0; i < 2; ++i, watched.now += 60) progress.stage("drawing");
      progress.finish();
    }
    CHECK(watched.live.empty());
    CHECK(watched.plain.empty());
  }
}

TEST_CASE("the time of a pause and of a new epoch's start does not count for the rate") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/false));
  progress.update(at_sample(0));
  watched.now += 10;
  progress.update(at_sample(100));
  progress.pause();
  watched.now += 3600;  // validation
  progress.update(at_sample(110));
  watched.now += 10;
  progress.update(at_sample(210));
  CHECK(watched.plain.back().find("  10 samples/s") != std::string::npos);
  watched.now += 3600;
  progress.update(at_sample(0, 1));
  watched.now += 10;
  progress.update(at_sample(100, 1));
  CHECK(watched.plain.back().find("  10 samples/s") != std::string::npos);
}

TEST_CASE("the rate follows a change within some intervals") {
  Watched watched;
  Progress progress(watched.options(/*terminal=*/false));
  int64_t sample = 0;
  for (int second = 0; second < 30; ++second, sample += 10, watched.now += 1) {
    progress.update(at_sample(sample));
  }
  for (int second = 0; second < 60; ++second, sample += 2, watched.now += 1) {
    progress.update(at_sample(sample));
  }
  progress.finish();
  CHECK(watched.plain.back().find("  2.0") != std::string::npos);
}

}  // namespace
}  // namespace dalle2
