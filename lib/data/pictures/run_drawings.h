// SPDX-License-Identifier: MIT
// Pictures that runs drew in a folder that is now read: they are none of the data.
#pragma once

#include <filesystem>
#include <set>
#include <utility>

namespace dalle2 {

/// Tells a run's drawings from the pictures of a folder. A run's folder has its record (is_run_record()), and the run draws in
/// kImagesFolder and kResultsFolder below it; what is not yet sent waits in kOutboxFolder. A later run there renames them to
/// images.1 and so on. Weights & Biases keeps copies below wandb/.
class RunDrawings {
 public:
  /// @param folder that is walked
  explicit RunDrawings(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// To be called for each file of the walk. @param file from the folder
  void see(const std::filesystem::path& file);
  /// After the walk. @param file as in see(): whether a run drew it
  bool has(const std::filesystem::path& file) const;
  /// Logs that `count` pictures were left out, if there are any.
  void tell(size_t count) const;

 private:
  std::filesystem::path folder_;
  std::set<std::filesystem::path> folders_;  // of runs
};

}  // namespace dalle2
