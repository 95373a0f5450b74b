// SPDX-License-Identifier: MIT
#include "tracker/places/targets.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>

#include "base/error.h"
#include "base/public_url.h"
#include "io/files/walk_folder.h"
#include "tracker/run_folder/run_files.h"
#include "tracker/run_folder/run_lock.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// @param hint what a path that leaves its folder should be
void check_path(const FilledTarget& filled, const char* hint) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("/tracker/save/{}: '{}' {}", filled.key, public_url(filled.target), what);
  };
  if (filled.target.find("://") != std::string::npos) {  // records and messages show what is a path
    refuse(
        "is a whole address; expected a path\n  For a server, use the saver \"url\" with the folder as its "
        "`url`.");
  }
  if (filled.path.empty() || filled.path.back() == '/')
    refuse("names no file, e.g. 'checkpoints/latest.pth'");
  const fs::path path(filled.path);
  if (std::find(path.begin(), path.end(), "..") != path.end())
    refuse(fmt::format("goes up, and '..' is refused: {}", hint));
}

/// A saver that copies the model over the run's own checkpoint (or the other way round) would leave
/// nothing to resume from.
void check_against_own(const FilledTarget& filled, SaveType type, const std::string& data_path) {
  const auto refuse = [&](const std::string& what) {
    throw ConfigError("/tracker/save: '{}' {}", filled.target, what);
  };
  const fs::path path = fs::absolute(filled.path).lexically_normal();
  const fs::path target = canonical_folder(path), folder = canonical_folder(data_path);
  if (is_in_folder(folder, target)) {
    refuse(fmt::format(
        "is data_path or a folder above it; a file is expected, such as {}/latest.pth", data_path));
  }
  if (path.extension() == ".part")
    refuse("has the name of an unfinished file: choose another name");
  if (!is_in_folder(target, folder)) return;
  const fs::path below = target.lexically_relative(folder);
  const std::string name = below.string(), first = below.begin()->string();
  const bool is_own =
      std::find(std::begin(kOwnNames), std::end(kOwnNames), first) != std::end(kOwnNames) ||
      name == kRecordFile || name == kLockFile || name.ends_with("_config.json");
  if (!is_own || name == own_file(type)) return;
  refuse(fmt::format(
      "is a place of the run's own files, a {} cannot be saved there: choose another path",
      save_type_name(type)));
}

}  // namespace

std::vector<FilledTarget> filled_targets(const SaveTargets& targets, const FormatFields& example) {
  std::vector<FilledTarget> filled;
  const auto fill = [&](const char* key, const std::optional<std::string>& target) {
    if (!target) return;
    try {
      filled.push_back({key, *target, python_format_example(*target, example)});
    } catch (const ConfigError& error) {
      throw ConfigError("/tracker/save/{}: '{}': {}", key, public_url(*target), error.what());
    }
  };
  fill("save_latest_to", targets.save_latest_to);
  fill("save_best_to", targets.save_best_to);
  if (targets.save_meta_to) {
    filled.push_back(
        {"save_meta_to", *targets.save_meta_to, *targets.save_meta_to + "/config.json"});
  }
  return filled;
}

std::vector<std::string> fixed_targets(const SaveTargets& targets) {
  std::vector<std::string> fixed;
  for (const auto& target : {targets.save_latest_to, targets.save_best_to}) {
    if (!target) continue;
    const std::vector<std::string> literals = python_format_literals(*target);
    if (literals.size() == 1) fixed.push_back(literals.front());
  }
  return fixed;
}

void check_local_targets(const SaveTargets& targets,
                         const FormatFields& example,
                         const std::string& data_path) {
  for (const FilledTarget& filled : filled_targets(targets, example)) {
    check_path(filled,
               "targets are relative to the working directory; write an absolute path for one "
               "outside of it");
    if (filled.key != std::string_view("save_meta_to"))
      check_against_own(filled, targets.save_type, data_path);
  }
}

void check_remote_targets(const SaveTargets& targets,
                          const FormatFields& example,
                          const std::string& place) {
  for (const FilledTarget& filled : filled_targets(targets, example)) {
    check_path(filled, "targets are names below the place of the saver");
    if (filled.path.front() != '/') continue;
    throw ConfigError("/tracker/save/{}: '{}' begins with '/': targets are names below {}",
                      filled.key,
                      filled.target,
                      place);
  }
}

std::string save_type_name(SaveType type) {
  return enum_names<SaveType>[static_cast<size_t>(type)];
}

const char* own_file(SaveType type) {
  constexpr const char* kFiles[] = {kCheckpointFile, kModelFile, kLoraFile};
  return kFiles[static_cast<size_t>(type)];
}

}  // namespace dalle2
