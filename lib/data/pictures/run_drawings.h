// SPDX-License-Identifier: MIT
// Pictures that runs drew in a folder that is now read: they are none of the data.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace dalle2 {

/// Tells a run's drawings from the pictures of a folder. A run's folder has the file kRecordFile, and
/// the run draws in kImagesFolder and kResultsFolder below it. A later run there renames them to images.1 and so on.
class RunDrawings {
 public:
  /// To be called for each file of the walk.
  void see(const std::filesystem::path& file);
  /// After the walk. @param file as in see(): whether a run drew it
  bool has(const std::filesystem::path& file) const;
  /// Logs that `count` pictures were left out, if there are any.
  static void tell(const std::string& folder, size_t count);

 private:
  std::set<std::filesystem::path> folders_;  // of runs
};

}  // namespace dalle2
