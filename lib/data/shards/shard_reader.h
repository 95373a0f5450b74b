// SPDX-License-Identifier: MIT
// One shard, from wherever it comes.
#pragma once

#include <memory>
#include <string>

#include "io/formats/webdataset.h"
#include "io/streams/url_source.h"

namespace dalle2 {

/// The samples of the shard at an url that open_source() knows. `options.offset` is 0 or a
/// SampleReader::next_offset(). @throws what that throws
std::unique_ptr<SampleReader> open_shard(const std::string& url,
                                         MemberWarning warn = {},
                                         const SourceOptions& options = {});

}  // namespace dalle2
