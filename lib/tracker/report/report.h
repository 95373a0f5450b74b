// SPDX-License-Identifier: MIT
// A run as one page: curves, pictures over time, what was left out, the config.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

struct ReportOptions {
  int64_t most_picture_steps = 12;
  std::vector<std::string> compare = {};  ///< data_paths of runs whose curves are shown too
};

/// The page of a run, finished or not, as one HTML text that loads nothing from anywhere.
/// @param data_path tracker.data_path of the run
/// @throws DataError if it, or one to compare, is no such folder, or holds no log.jsonl
std::string make_report(const std::string& data_path, const ReportOptions& options);

}  // namespace dalle2
