// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/files/walk_folder.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string snapshot_name(const SnapshotPosition& position) {
  return fmt::format("epoch{:04}_sample{:010}_step{:08}.pth",
                     position.epoch,
                     position.samples_seen,
                     position.step);
}

std::string averages_name(int64_t step) {
  return fmt::format("step{:08}.pth", step);
}

std::optional<SnapshotPosition> snapshot_position(const std::string& name) {
  SnapshotPosition at;
  constexpr const char* kForm = "epoch%" SCNd64 "_sample%" SCNd64 "_step%" SCNd64;
  const int found =
      std::sscanf(name.c_str(), kForm, &at.epoch, &at.samples_seen, &at.step);  // NOLINT
  const bool fits = found == 3 && name.find('-') == std::string::npos && snapshot_name(at) == name;
  return fits ? std::optional(at) : std::nullopt;
}

std::vector<SnapshotPosition> snapshots_to_remove(std::vector<SnapshotPosition> all,
                                                  const SnapshotPosition& current,
                                                  const SnapshotRules& rules) {
  std::sort(all.begin(), all.end());
  const auto last = static_cast<size_t>(rules.keep_last) + 1;
  const size_t first_of_last = all.size() > last ? all.size() - last : 0;
  std::vector<SnapshotPosition> removed;
  int64_t multiple = 0;  // of keep_every, that the last one kept for good has reached
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t reached = rules.keep_every ? all[i].samples_seen / *rules.keep_every : 0;
    const bool for_good = reached > multiple;
    multiple = std::max(multiple, reached);
    if (!for_good && i < first_of_last && all[i] != current) removed.push_back(all[i]);
  }
  return removed;
}

Snapshots::Snapshots(std::string folder, const SnapshotRules& rules)
    : folder_(std::move(folder)), rules_(rules) {}

void Snapshots::keep(const std::string& checkpoint_path,
                     const SnapshotPosition& position,
                     bool is_best) {
  if (!rules_.enabled()) return;
  link_file_atomically(checkpoint_path, path_of(position));
  if (is_best) link_file_atomically(checkpoint_path, best_path());
  for (const SnapshotPosition& old : snapshots_to_remove(positions(), position, rules_)) {
    remove_file(path_of(old));
  }
}

std::vector<std::string> Snapshots::after(const SnapshotPosition& position) const {
  std::vector<std::string> paths;
  for (const SnapshotPosition& other : positions()) {
    if (other > position) paths.push_back(path_of(other));
  }
  return paths;
}

std::vector<std::string> Snapshots::newest_first() const {
  std::vector<SnapshotPosition> all = positions();
  std::sort(all.rbegin(), all.rend());
  std::vector<std::string> paths;
  for (const SnapshotPosition& position : all) paths.push_back(path_of(position));
  std::error_code error;
  if (fs::exists(best_path(), error)) paths.push_back(best_path());
  return paths;
}

std::vector<SnapshotPosition> Snapshots::positions() const {
  std::vector<SnapshotPosition> found;
  const WalkEnd end = walk_folder(folder_, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (const auto position = snapshot_position(name)) found.push_back(*position);
  });
  if (end.error && end.error != std::errc::no_such_file_or_directory) {  // not there: none yet
    throw DataError("{}: the folder cannot be read: {}", folder_, end.error.message());
  }
  return found;
}

std::string Snapshots::path_of(const SnapshotPosition& position) const {
  return (fs::path(folder_) / snapshot_name(position)).string();
}

std::string Snapshots::best_path() const {
  return (fs::path(folder_) / "best.pth").string();
}

}  // namespace dalle2
