// SPDX-License-Identifier: MIT
// A run as one page: curves, pictures over time, what was left out, the config.
//
// The curves: which belong into one chart, and the data that the page's script
// (report.js) draws. Without a script the page shows the last value of each. And texts of pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tracker/log/log_file.h"

namespace dalle2 {

struct ReportOptions {
  int64_t most_picture_steps = 12;
  std::vector<std::string> compare = {};  ///< data_paths of runs whose curves are shown too
};

/// The page of a run, finished or not, as one HTML text that loads nothing from anywhere.
/// @param data_path tracker.data_path of the run
/// @throws DataError if it, or one to compare, is no such folder, or holds no log.jsonl
std::string make_report(const std::string& data_path, const ReportOptions& options);

/// Text as part of a page or of an attribute. Bytes that are not UTF-8 become replacement
/// characters, control characters are shown as `\x1b`.
std::string html_escape(std::string_view text);

/// A value for people: 0.01234, 1.5e-05, 1,234; "not finite" for NaN and infinity.
std::string number_text(double value);

struct ChartOptions {
  std::string title = "";
  std::string note = "";  ///< beside the title, e.g. the unit
  bool linear = false;    ///< never a logarithmic scale
  bool smoothed = false;  ///< a running mean over the values, which stay faint behind it
};

/// A <figure> with the title, the data and a table of the last values. The scale is logarithmic where
/// positive values span more than a factor of 30, unless that is off.
/// @param series with at least one finite value in all; none draws nothing: ""
std::string draw_chart(const std::vector<LogSeries>& series, const ChartOptions& options);

}  // namespace dalle2
