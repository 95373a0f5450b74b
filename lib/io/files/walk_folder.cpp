// SPDX-License-Identifier: MIT
#include "io/files/walk_folder.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/files/disk_io.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// @param take gets the iterator at each entry
template <class Iterator, class Take>
std::error_code each_entry(Iterator entry, const Take& take) {
  std::error_code error;
  // A step that fails makes the iterator the end.
  for (const Iterator end; !error && entry != end;) {
    take(entry);
    entry.increment(error);
    if (fails_here("readdir")) error.assign(errno, std::generic_category());
  }
  return error;
}

template <class Take>
WalkEnd walk(const fs::path& folder, Below below, const Take& take) {
  WalkEnd result;
  const auto go = [&](auto entry) {
    result.opened = !result.error;
    if (result.opened) result.error = each_entry(std::move(entry), take);
  };
  // Skipping what cannot be read would take in the folder itself.
  fs::directory_iterator first(folder, result.error);
  if (result.error) return result;
  if (below == Below::kNothing) {
    go(std::move(first));
  } else {
    const auto options = below == Below::kReadable ? fs::directory_options::skip_permission_denied
                                                   : fs::directory_options::none;
    go(fs::recursive_directory_iterator(folder, options, result.error));
  }
  return result;
}

bool is_folder_of_run(const fs::path& folder) {
  return folder.filename() == "wandb" || path_exists(folder / kRecordFile);
}

}  // namespace

WalkEnd walk_folder(const fs::path& folder,
                    Below below,
                    const std::function<void(const fs::directory_entry&)>& take) {
  return walk(folder, below, [&](const auto& entry) { take(*entry); });
}

WalkEnd walk_data(const fs::path& folder,
                  Below below,
                  const std::function<void(const fs::directory_entry&)>& take) {
  std::vector<fs::path> links;  // to folders
  std::vector<std::string> of_runs;
  const auto walk_visible = [&](const fs::path& top) {
    return walk(top, below, [&](auto& entry) {
      const bool is_hidden = entry->path().filename().native().starts_with('.');
      if constexpr (requires { entry.disable_recursion_pending(); }) {
        std::error_code ignored;
        const bool is_folder = !is_hidden && entry->is_directory(ignored);
        const bool is_of_run = is_folder && is_folder_of_run(entry->path());
        if (is_hidden || is_of_run) entry.disable_recursion_pending();
        if (is_of_run) of_runs.push_back(entry->path().string());
        if (is_folder && !is_of_run && entry->is_symlink(ignored)) links.push_back(entry->path());
      }
      if (!is_hidden) take(*entry);
    });
  };
  WalkEnd result = walk_visible(folder);
  std::vector<fs::path> walked = {canonical_folder(folder)};
  while (!result.error && !links.empty()) {
    std::vector<fs::path> found = std::exchange(links, {});
    std::ranges::sort(found);
    for (const fs::path& link : found) {
      const fs::path target = canonical_folder(link);
      const auto any_walked = [&](const auto& rule) { return std::ranges::any_of(walked, rule); };
      if (any_walked([&](const fs::path& other) { return is_in_folder(target, other); })) continue;
      if (any_walked([&](const fs::path& other) { return is_in_folder(other, target); })) {
        log_warning(
            "data",
            "{}: the link leads to a folder that holds one which is read already; it is left out",
            link.string());
        continue;
      }
      walked.push_back(target);
      const WalkEnd end = walk_visible(link);
      // Of a folder that cannot be read the caller has seen the link.
      if (end.error && (end.opened || below != Below::kReadable)) return {true, end.error};
    }
  }
  std::ranges::sort(of_runs);
  result.of_runs = std::move(of_runs);
  return result;
}

void walk_whole_folder(const fs::path& folder,
                       Below below,
                       const std::function<void(const fs::directory_entry&)>& take) {
  const WalkEnd end = walk_data(folder, below, take);
  if (end.error)
    throw DataError("{}: the folder cannot be read: {}.", folder.string(), end.error.message());
  if (!end.of_runs.empty())
    log_info("data", "{}: left out folders of runs: {}", folder.string(), short_list(end.of_runs));
}

}  // namespace dalle2
