// SPDX-License-Identifier: MIT
#include "data/pictures/lost_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

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

}  // namespace dalle2
