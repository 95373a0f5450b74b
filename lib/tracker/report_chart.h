// SPDX-License-Identifier: MIT
// Curves as SVG: drawn here, so that they are seen without a script; the page's script adds values
// under the pointer.
#pragma once

#include <string>
#include <vector>

#include "tracker/run_log.h"

namespace dalle2 {

struct ChartOptions {
  std::string title = "";
  std::string note = "";  ///< beside the title, e.g. the unit
  bool linear = false;    ///< never a logarithmic scale
  bool stacked = false;   ///< areas on top of each other; the series need the same steps
  bool smoothed = false;  ///< a running mean over the values, which stay faint behind it
};

/// A <figure> with title, legend (with the last values) and curves. The scale is logarithmic where
/// positive values span more than a factor of 30, unless that is off.
/// @param series with at least one finite value in all; none draws nothing: ""
std::string draw_chart(const std::vector<LogSeries>& series, const ChartOptions& options);

}  // namespace dalle2
