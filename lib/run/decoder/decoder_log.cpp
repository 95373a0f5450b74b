// SPDX-License-Identifier: MIT
// What a decoder run logs of its metrics.
#include <torch/types.h>

#include "base/log.h"
#include "run/decoder/decoder_run.h"

namespace dalle2 {
namespace {

/// The figures themselves, without their spread: a line of a terminal holds no more.
ShownRecord shown_metrics(const MetricValues& found) {
  ShownRecord shown;
  for (const auto& [name, value] : found.values) {
    if (name.ends_with("_std") || name.ends_with("_standard_error")) continue;
    if (name == "PR_recall") {
      shown.back().values.emplace_back(value);
    } else {
      shown.push_back({.label = name == "PR_precision" ? "P/R" : name.substr(0, name.find('_')),
                       .values = {value}});
    }
  }
  return shown;
}

}  // namespace

void DecoderRun::log_metrics(const MetricValues& found) {
  for (const std::string& fault : found.faults) log_warning("eval", "{}", fault);
  for (const std::string& note : found.notes) log_warning("eval", "{}", note);
  if (found.values.empty()) return;
  LogRecord record(found.values.begin(), found.values.end());
  record.emplace_back("Evaluation Samples", found.images);
  if (found.left_out > 0) record.emplace_back("Evaluation Samples Left Out", found.left_out);
  record.emplace_back("Evaluation", metrics_->description());
  session_.tracker().log(record, trainer_.first_steps(), shown_metrics(found));
}

}  // namespace dalle2
