// SPDX-License-Identifier: MIT
#include "data/pictures/lost_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/folder_names.h"

namespace dalle2 {

bool is_lost_link(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_symlink(path, ignored) && !std::filesystem::exists(path, ignored);
}

std::string counted_lost_links(size_t count) {
  return counted(static_cast<int64_t>(count), "link") +
         (count == 1 ? " whose target does not exist or cannot be reached"
                     : " whose targets do not exist or cannot be reached");
}

void warn_of_lost_links(const std::string& folder, std::vector<std::string> links) {
  if (links.empty()) return;
  std::sort(links.begin(), links.end());
  log_warning("data",
              "{}: left out {}: {}",
              printable(folder),
              counted_lost_links(links.size()),
              printable(short_list(links)));
}

void UnreadPictures::see(const std::filesystem::path& name) {
  std::string extension = lower_extension(name);
  if (is_unread_extension(extension)) ++counts_[std::move(extension)];
}

std::string UnreadPictures::text() const {
  std::string kinds;
  int64_t all = 0;
  for (const auto& [extension, count] : counts_) {
    kinds += fmt::format("{}{} {}", all > 0 ? ", " : "", with_commas(count), extension);
    all += count;
  }
  return fmt::format("{} of kinds that are not read ({}): convert {} to PNG or JPEG",
                     counted(all, "picture"),
                     kinds,
                     all == 1 ? "it" : "them");
}

std::string UnreadPictures::but() const {
  return counts_.empty() ? "" : ", but " + text();
}

void UnreadPictures::tell(const std::string& folder) const {
  if (!counts_.empty()) log_warning("data", "{}: left out {}", printable(folder), text());
}

}  // namespace dalle2
