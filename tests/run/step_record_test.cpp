// SPDX-License-Identifier: MIT
#include "run/loop/training_run.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "run/toy_run.h"
#include "run/toy_support.h"
#include "support/captured_log.h"
#include "tracker/log/log_file.h"

namespace dalle2 {
namespace {

PartValues values_of(int64_t part, double loss, double rate) {
  PartValues values;
  values.part = part;
  values.loss.mean = loss;
  values.learning_rate = rate;
  values.grad_norm = 0.42;
  return values;
}

TEST_CASE("the line of a step has loss, rate, gradient and speed") {
  CHECK(record_line(shown_step({values_of(1, 0.30651, 0.00198)}, 108.2), 110) ==
        "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s");
}

TEST_CASE("of several parts the line has a value each, one rate where it is the same") {
  std::vector<PartValues> parts = {values_of(1, 0.5, 1e-4),
                                   values_of(2, std::numeric_limits<double>::quiet_NaN(), 1e-4)};
  parts[1].skipped_updates = 2;
  parts[1].grad_norm = 1234.5;
  CHECK(record_line(shown_step(parts, 1234), 3) ==
        "step 3  loss 0.5 nan  lr 1e-4  grad 0.42 1,235  1,234 samples/s  2 skipped");
  parts[1].learning_rate = 2e-4;
  CHECK(record_line(shown_step(parts, 5), 3) ==
        "step 3  loss 0.5 nan  lr 1e-4 2e-4  grad 0.42 1,235  5 samples/s  2 skipped");
}

TEST_CASE("before the first update there is no gradient, and the log has what there is") {
  PartValues values = values_of(1, std::numeric_limits<double>::quiet_NaN(), 1e-4);
  values.grad_norm.reset();
  values.loss.left_out = 3;
  CHECK(record_line(shown_step({values}, 5), 0) == "step 0  loss nan  lr 1e-4  5 samples/s");
  PartMetricNames names;
  names.prefix = "Part 0 ";
  LogRecord record;
  add_part_values(record, {values}, {names});
  CHECK(
      format_record(record, 0, 0) ==
      R"({"Part 0 Losses Not Finite": 3, "Part 0 Learning Rate": 0.0001, "step": 0, "time": 0.000})");
}

TEST_CASE("the names of a part are a prefix and words in a style") {
  CHECK(PartMetricNames{"Unet 0 "}.of("EMA decay") == "Unet 0 EMA Decay");
  CHECK(PartMetricNames{"Unet 1 "}.of("validation loss") == "Unet 1 Validation Loss");
  CHECK(PartMetricNames{"tracking/", NameStyle::kHyphen}.of("EMA decay") == "tracking/ema-decay");
  CHECK(PartMetricNames{"discr_", NameStyle::kUnderscore}.of("losses not finite") ==
        "discr_losses_not_finite");
}

TEST_CASE("a run prints a line a record of its steps, and with --quiet none of them") {
  for (const bool quiet : {false, true}) {
    CAPTURE(quiet);
    const test::TempDir folder;
    test::ToyConfig config = test::toy_config(folder.path());
    config.quiet = quiet;
    config.train.log_every_n_updates = 2;
    test::CapturedLog log;
    test::ToyRun(config).run();
    std::vector<std::string> steps;
    for (const auto& line : log.lines()) {
      CHECK(line.text.find_first_of("{}\"") == std::string::npos);
      if (line.text.starts_with("step ")) steps.push_back(line.text);
    }
    const auto training = std::count_if(steps.begin(), steps.end(), [](const auto& line) {
      return line.find("  loss ") != std::string::npos;
    });
    CHECK(training == (quiet ? 0 : 3 * config.train.epochs));
    REQUIRE_FALSE(steps.empty());
    CHECK(log.count("Validation Loss") == config.train.epochs);
    if (quiet) continue;
    CHECK_THAT(
        steps.front(),
        Catch::Matches(R"(step 1  loss [\d.,]+  lr 0\.05  grad [\d.,]+  [\d.,]+ samples/s)"));
  }
}

}  // namespace
}  // namespace dalle2
