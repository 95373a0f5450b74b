// SPDX-License-Identifier: MIT
#include "data/pictures/run_drawings.h"

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/folder_names.h"

namespace dalle2 {

void RunDrawings::see(const std::filesystem::path& file) {
  if (file.filename() != kRecordFile) return;
  folders_.insert(file.parent_path());
}

bool RunDrawings::has(const std::filesystem::path& file) const {
  if (folders_.empty()) return false;
  for (std::filesystem::path above = file.parent_path(); above.has_relative_path();
       above = above.parent_path()) {
    // "images", and "images.1" of an earlier run in the same folder
    const std::filesystem::path name = above.filename().stem();
    const bool is_drawn_in = name == kImagesFolder || name == kResultsFolder;
    if (is_drawn_in && folders_.contains(above.parent_path())) return true;
  }
  return false;
}

void RunDrawings::tell(const std::string& folder, size_t count) {
  if (count == 0) return;
  log_info("data",
           "{}: {} that a run drew there {} left out",
           printable(folder),
           counted(static_cast<int64_t>(count), "picture"),
           count == 1 ? "is" : "are");
}

}  // namespace dalle2
