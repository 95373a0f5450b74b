// SPDX-License-Identifier: MIT
#include "tracker/log/log_file.h"

#include <catch2/catch.hpp>
#include <limits>

namespace dalle2 {
namespace {

TEST_CASE("a step is one line of short values with their names and units") {
  const ShownRecord shown = {{.label = "loss", .values = {0.30651234}},
                             {.label = "lr", .values = {0.00198}},
                             {.label = "grad", .values = {0.42}},
                             {.values = {108.24}, .unit = "samples/s", .digits = 3}};
  CHECK(record_line(shown, 110) == "step 110  loss 0.3065  lr 1.98e-3  grad 0.42  108 samples/s");
}

TEST_CASE("values of several parts stand behind one name, one that is no number too") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(record_line({{.label = "loss", .values = {0.25, nan}},
                     {.values = {int64_t{1234}}, .unit = "skipped"}},
                    7) == "step 7  loss 0.25 nan  1,234 skipped");
}

TEST_CASE("a record that nobody chose from is shown in full, without quotes and brackets") {
  const LogRecord record = {
      {"Epoch", int64_t{3}}, {"Unet 0 Training Loss", 0.1234567890123}, {"note", "a \"b\""}};
  CHECK(record_line(shown_in_full(record), 40) ==
        "step 40  Epoch 3  Unet 0 Training Loss 0.1235  note a \"b\"");
  CHECK(record_line({}, 40) == "step 40");
}

}  // namespace
}  // namespace dalle2
