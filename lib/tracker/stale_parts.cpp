// SPDX-License-Identifier: MIT
#include "tracker/stale_parts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "config/kinds.h"
#include "io/files/walk_folder.h"
#include "tracker/auto_resume.h"
#include "tracker/snapshots.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPart = ".part";

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// run.lock.HOST.PID.NUMBER, under which RunLock makes its lock and takes a dead one away.
bool is_lock_aside(std::string_view name) {
  constexpr std::string_view kLock = "run.lock.";
  if (!name.starts_with(kLock)) return false;
  name.remove_prefix(kLock.size());
  for (int numbers = 0; numbers < 2; ++numbers) {
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos || !is_number(name.substr(dot + 1))) return false;
    name = name.substr(0, dot);
  }
  return !name.empty();
}

bool is_in_data_path(std::string_view name) {
  constexpr std::array<std::string_view, 6> kFiles = {
      kCheckpointFile, kModelFile, kLoraFile, kGatheredFile, kAutoResumeFile, kRecordFile};
  if (std::find(kFiles.begin(), kFiles.end(), name) != kFiles.end()) return true;
  const std::vector<std::string> kinds = known_root_keys();
  const bool is_config = std::any_of(kinds.begin(), kinds.end(), [&](const std::string& kind) {
    return name == kind + "_config.json";
  });
  return is_config || is_lock_aside(name);
}

/// STEP_SECTION_NUMBER.png
bool is_image(std::string_view name) {
  constexpr std::string_view kEnding = ".png";
  if (!name.ends_with(kEnding)) return false;
  name.remove_suffix(kEnding.size());
  const size_t first = name.find('_'), last = name.rfind('_');
  return first < last && is_number(name.substr(0, first)) && is_number(name.substr(last + 1));
}

bool is_snapshot(std::string_view name) {
  const std::string file(name);
  const std::optional<SnapshotPosition> position = snapshot_position(file);
  return file == "best.pth" || (position && snapshot_name(*position) == file);
}

/// stepNUMBER.pth
bool is_average(std::string_view name) {
  constexpr std::string_view kBegin = "step", kEnding = ".pth";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnding)) return false;
  name.remove_suffix(kEnding.size());
  return is_number(name.substr(kBegin.size()));
}

/// @param is_ours whether a run gives this name, without `.part`, to a file in this folder
int sweep_folder(const fs::path& folder, bool (*is_ours)(std::string_view name)) {
  std::vector<fs::path> stale;
  std::error_code ignored;
  // What a listing that breaks off did not show is swept at the next start.
  walk_folder(folder, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    const bool fits = name.ends_with(kPart) &&
                      is_ours(std::string_view(name).substr(0, name.size() - kPart.size()));
    if (fits && entry.symlink_status(ignored).type() == fs::file_type::regular) {
      stale.push_back(entry.path());
    }
  });
  return static_cast<int>(std::count_if(
      stale.begin(), stale.end(), [&](const fs::path& path) { return fs::remove(path, ignored); }));
}

}  // namespace

int sweep_stale_parts(const std::string& data_path) {
  const fs::path folder(data_path);
  return sweep_folder(folder, is_in_data_path) + sweep_folder(folder / kImagesFolder, is_image) +
         sweep_folder(folder / kSnapshotsFolder, is_snapshot) +
         sweep_folder(folder / kAveragesFolder, is_average);
}

std::vector<std::string> sweep_parts_of(const std::vector<std::string>& paths) {
  std::vector<std::string> removed;
  for (const std::string& path : paths) {
    const fs::path part = path + std::string(kPart);
    std::error_code ignored;
    const bool is_file = fs::symlink_status(part, ignored).type() == fs::file_type::regular;
    if (is_file && fs::remove(part, ignored)) removed.push_back(part.string());
  }
  return removed;
}

}  // namespace dalle2
