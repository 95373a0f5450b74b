// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "base/untrusted_json.h"

namespace dalle2 {

WandbMark::~WandbMark() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<int64_t> WandbMark::read(const std::string& run_id) const {
  std::ifstream file(path_);
  std::string line;
  std::getline(file, line);
  const Json mark = parse_untrusted_object(line);
  if (!mark.contains("run_id") || mark["run_id"] != run_id || !mark.contains("records") ||
      !mark["records"].is_number_unsigned()) {
    return std::nullopt;
  }
  return mark["records"].get<int64_t>();
}

void WandbMark::remove() const {
  ::unlink(path_.c_str());
}

void WandbMark::write(const std::string& run_id, int64_t records) {
  std::string line =
      fmt::format("{{\"run_id\": {}, \"records\": {:>20}}}\n", json_line(run_id), records);
  if (line == line_) return;
  if (descriptor_ < 0) {
    // Not emptied: a kill before the write leaves what was there.
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  }
  const auto size = static_cast<ssize_t>(line.size());
  if (::pwrite(descriptor_, line.data(), line.size(), 0) == size) line_ = std::move(line);
}

}  // namespace dalle2
