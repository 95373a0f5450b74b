// SPDX-License-Identifier: MIT
#include "data/pictures/run_drawings.h"

#include <string>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

/// wandb/offline-run-20261126_101500-abc/files/media
bool is_media_of_wandb(const std::filesystem::path& folder) {
  if (folder.filename() != "media" || folder.parent_path().filename() != "files") return false;
  const std::filesystem::path run = folder.parent_path().parent_path();
  const std::string name = run.filename().string();
  return run.parent_path().filename() == "wandb" &&
         (name.starts_with("run-") || name.starts_with("offline-run-"));
}

}  // namespace

void RunDrawings::see(const std::filesystem::path& file) {
  if (file.filename() == kRecordFile && is_run_record(folder_ / file))
    folders_.insert(file.parent_path());
}

bool RunDrawings::has(const std::filesystem::path& file) const {
  for (std::filesystem::path above = file.parent_path(); above.has_relative_path();
       above = above.parent_path()) {
    if (is_media_of_wandb(above)) return true;
    // "images", and "images.1" of an earlier run in the same folder
    const std::filesystem::path name = above.filename().stem();
    const bool is_drawn_in =
        name == kImagesFolder || name == kResultsFolder || name == kOutboxFolder;
    if (is_drawn_in && folders_.contains(above.parent_path())) return true;
  }
  return false;
}

void RunDrawings::tell(size_t count) const {
  if (count == 0) return;
  log_info("data",
           "{}: {} that a run drew there {} left out",
           printable(folder_.string()),
           counted(static_cast<int64_t>(count), "picture"),
           count == 1 ? "is" : "are");
}

}  // namespace dalle2
