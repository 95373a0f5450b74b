// SPDX-License-Identifier: MIT
#include "tracker/run_folder/stale_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <string_view>
#include <vector>

#include "config/kinds.h"
#include "io/files/walk_folder.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Names that a run gives in data_path.
std::regex names_in_data_path() {
  return std::regex(fmt::format(
      R"((checkpoint\.pth|loaded_checkpoint\.pth|model_card\.md|model\.pth|lora\.safetensors|gathered)"
      R"(|auto_resume\.json|targets\.json|({})_config\.json)\.part)",
      fmt::join(known_root_keys(), "|")));
}

/// STEP_SECTION_NUMBER.png, and STEP.png of a VAE's grids.
const std::regex kImages(R"([0-9]+(_.*_[0-9]+|(\.ema)?)\.png\.part)");
const std::regex kSnapshots(
    R"((best|last_good|epoch[0-9]{4,}_sample[0-9]{10,}_step[0-9]{8,})\.pth\.part)");
/// LOCK.HOST.PID.NUMBER.part
const std::regex kStarters(R"(.+\.[0-9]+\.[0-9]+\.part)");
const std::regex kAverages(R"(step[0-9]+\.pth\.part)");

bool remove_regular_file(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type() == fs::file_type::regular &&
         fs::remove(path, ignored);
}

/// @param names pattern of what follows `prefix` in a name
/// @return the paths of what was removed
std::vector<std::string> sweep_folder(const fs::path& folder,
                                      const std::regex& names,
                                      const std::string& prefix = "") {
  std::vector<fs::path> stale;
  // What a listing that breaks off did not show is swept at the next start.
  walk_folder(folder, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    const bool is_ours =
        name.starts_with(prefix) && std::regex_match(name.substr(prefix.size()), names);
    if (is_ours) stale.push_back(entry.path());
  });
  std::vector<std::string> removed;
  for (const fs::path& path : stale) {
    if (remove_regular_file(path)) removed.push_back(path.string());
  }
  std::sort(removed.begin(), removed.end());
  return removed;
}

}  // namespace

std::vector<std::string> sweep_stale_parts(const std::string& data_path) {
  const fs::path folder(data_path);
  std::vector<std::string> removed = sweep_folder(folder, names_in_data_path());
  const auto sweep = [&](const char* name, const std::regex& names) {
    for (std::string& path : sweep_folder(folder / name, names)) removed.push_back(std::move(path));
  };
  sweep(kImagesFolder, kImages);
  sweep(kSnapshotsFolder, kSnapshots);
  sweep(kAveragesFolder, kAverages);
  return removed;
}

void sweep_parts_of_lock(const std::string& lock) {
  const fs::path path(lock);
  sweep_folder(path.parent_path(), kStarters, path.filename().string() + ".");
}

std::vector<std::string> sweep_parts_of(const std::vector<std::string>& paths) {
  std::vector<std::string> removed;
  for (const std::string& path : paths) {
    if (remove_regular_file(path + ".part")) removed.push_back(path + ".part");
  }
  return removed;
}

}  // namespace dalle2
