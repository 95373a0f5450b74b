// SPDX-License-Identifier: MIT
// One shard, from wherever it comes.
#pragma once

#include <memory>
#include <string>

#include "io/webdataset.h"

namespace dalle2 {

/// The samples of the shard at an url: a path, `file:PATH`, or `pipe:COMMAND`, whose output is the
/// tar and whose failure is a DataError at the end of it (status 141, a closed pipe, is none).
/// @throws DataError (no such file, no such command), ConfigError for urls that are not available
/// yet
std::unique_ptr<SampleReader> open_shard(const std::string& url, MemberWarning warn = {});

}  // namespace dalle2
