// SPDX-License-Identifier: MIT
#include "data/loader/sample_trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace dalle2 {

void trace_samples(int rank, const std::string& split, int64_t epoch, const Batch& batch) {
  const char* base = std::getenv("DALLE2_TRACE_SAMPLES");
  if (base == nullptr || *base == '\0') return;
  nlohmann::ordered_json record;
  record["rank"] = rank;
  record["split"] = split;
  record["epoch"] = epoch;
  record["keys"] = batch.keys;
  // Keys come from tar files and may be no UTF-8.
  const std::string line =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::string path = fmt::format("{}.rank{}", base, rank);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written) {
    throw DataError("DALLE2_TRACE_SAMPLES: {} cannot be written: {}.", path, errno_text(reason));
  }
}

}  // namespace dalle2
