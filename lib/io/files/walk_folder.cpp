// SPDX-License-Identifier: MIT
#include "io/files/walk_folder.h"

#include <cerrno>

#include "base/error.h"
#include "io/files/fail_point.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

template <class Iterator>
std::error_code each_entry(Iterator entry,
                           const std::function<void(const fs::directory_entry&)>& take) {
  std::error_code error;
  // A step that fails makes the iterator the end.
  for (const Iterator end; !error && entry != end;) {
    take(*entry);
    entry.increment(error);
    if (fails_here("readdir")) error.assign(errno, std::generic_category());
  }
  return error;
}

}  // namespace

WalkEnd walk_folder(const fs::path& folder,
                    Below below,
                    const std::function<void(const fs::directory_entry&)>& take) {
  WalkEnd result;
  const auto go = [&](auto entry) {
    result.opened = !result.error;
    if (result.opened) result.error = each_entry(std::move(entry), take);
  };
  switch (below) {
    case Below::kNothing:
      go(fs::directory_iterator(folder, result.error));
      break;
    case Below::kAll:
      go(fs::recursive_directory_iterator(folder, result.error));
      break;
    case Below::kReadable:
      // Skipping what cannot be read would take in the folder itself.
      if (const fs::directory_iterator first(folder, result.error); result.error) break;
      go(fs::recursive_directory_iterator(
          folder, fs::directory_options::skip_permission_denied, result.error));
      break;
  }
  return result;
}

void walk_whole_folder(const fs::path& folder,
                       Below below,
                       const std::function<void(const fs::directory_entry&)>& take) {
  const WalkEnd end = walk_folder(folder, below, take);
  if (!end.error) return;
  throw DataError("{}: the folder cannot be read: {}.", folder.string(), end.error.message());
}

}  // namespace dalle2
