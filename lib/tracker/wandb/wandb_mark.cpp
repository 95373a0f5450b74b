// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "base/untrusted_json.h"

namespace dalle2 {
namespace {

std::optional<int64_t> number_of(const Json& mark, const char* key) {
  const auto entry = mark.find(key);
  if (entry == mark.end() || !entry->is_number_unsigned()) return std::nullopt;
  return entry->get<int64_t>();
}

/// A line of the file, and what it says.
struct FoundLine {
  int64_t place = 0, size = 0;  ///< with its end
  std::optional<WandbProgress> progress;
};

/// The last line of a run. A part of a line says nothing.
FoundLine find_line(const std::string& path, const std::string& run_id) {
  FoundLine found;
  std::ifstream file(path, std::ios::binary);
  int64_t place = 0;
  for (std::string line; std::getline(file, line);) {
    const auto size = static_cast<int64_t>(line.size()) + 1;
    const Json mark = parse_untrusted_object(line);
    if (mark.contains("run_id") && mark["run_id"] == run_id) {
      const std::optional<int64_t> records = number_of(mark, "records");
      if (records) found = {place, size, WandbProgress{*records, number_of(mark, "next_step")}};
    }
    place += size;
  }
  return found;
}

}  // namespace

WandbMark::~WandbMark() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<WandbProgress> WandbMark::read(const std::string& run_id) const {
  return find_line(path_, run_id).progress;
}

void WandbMark::remove() const {
  ::unlink(path_.c_str());
}

void WandbMark::write(const std::string& run_id, const WandbProgress& progress) {
  std::string line = fmt::format("{{\"run_id\": {}, \"records\": {:>20}, \"next_step\": {:>20}}}\n",
                                 json_line(run_id),
                                 progress.records,
                                 progress.next_step.value_or(progress.records));
  if (line == line_) return;
  if (descriptor_ < 0) {
    // Not emptied: a kill before the write leaves what was there.
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  }
  const auto size = static_cast<ssize_t>(line.size());
  if (run_id != run_id_) {
    const FoundLine found = find_line(path_, run_id);
    const bool fits = found.progress && found.size == static_cast<int64_t>(size);
    place_ = fits ? found.place : -1;
    run_id_ = run_id;
  }
  if (place_ < 0) return append(line);
  if (::pwrite(descriptor_, line.data(), line.size(), place_) == size) line_ = std::move(line);
}

/// Behind all lines, of which the last may have lost its end. Leaves no part of a line.
void WandbMark::append(const std::string& line) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return;
  std::ifstream file(path_, std::ios::binary);
  file.seekg(-1, std::ios::end);
  const int last = status.st_size > 0 ? file.get() : '\n';
  const std::string text = (last == '\n' ? "" : "\n") + line;
  if (::pwrite(descriptor_, text.data(), text.size(), status.st_size) !=
      static_cast<ssize_t>(text.size())) {
    [[maybe_unused]] const int ignored = ::ftruncate(descriptor_, status.st_size);
    return;
  }
  place_ = status.st_size + static_cast<int64_t>(text.size() - line.size());
  line_ = line;
}

}  // namespace dalle2
