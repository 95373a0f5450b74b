// SPDX-License-Identifier: MIT
#include "data/shards/shard_reader.h"

#include <string>
#include <utility>

#include "base/public_url.h"
#include "io/streams/url_source.h"

namespace dalle2 {

std::unique_ptr<SampleReader> open_shard(const std::string& url,
                                         MemberWarning warn,
                                         const SourceOptions& options) {
  const std::string origin = is_local_url(url) ? local_path(url) : public_url(url);
  return std::make_unique<SampleReader>(
      open_source(url, options), origin, std::move(warn), options.offset);
}

}  // namespace dalle2
