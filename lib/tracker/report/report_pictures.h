// SPDX-License-Identifier: MIT
// What a run drew, over time: one row an example, one column a step.
#pragma once

#include <string>

#include "tracker/log/log_file.h"

namespace dalle2 {

/// A table for each section of pictures, the pictures themselves within it. Pairs "real, drawn" are
/// taken apart: the real one is shown once. Sheets of all pairs are left out where the pairs are
/// there.
/// @param data_path the pictures' paths are relative to it; paths that lead out of it are not
/// followed
/// @param most_steps columns; of more steps the first, the last and some between are shown
std::string picture_tables(const RunLog& log, const std::string& data_path, int64_t most_steps);

}  // namespace dalle2
