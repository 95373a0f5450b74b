// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <vector>

namespace dalle2 {

/// What belongs to a walk besides the entries of the folder itself.
enum class Below {
  kNothing,
  kAll,       ///< folders below it; one that cannot be read ends the walk
  kReadable,  ///< folders below it, but for those that this user may not read
};

struct WalkEnd {
  bool opened = false;                    ///< the folder itself could be opened
  std::error_code error;                  ///< why it could not be, or why the listing broke off
  std::vector<std::string> of_runs = {};  ///< folders that walk_data() has passed over
};

/// Calls `take` for each entry of a folder, in no order. A listing that breaks off is not at its end:
/// `error` tells, and the caller says what that means. @throws what `take` throws
WalkEnd walk_folder(const std::filesystem::path& folder,
                    Below below,
                    const std::function<void(const std::filesystem::directory_entry&)>& take);

/// The same for a folder of data. Names that begin with a dot are left out: they are copies and notes of
/// other programs (`._a.jpg`, `.ipynb_checkpoints`). Links to folders are followed, in the order of
/// their paths, unless the target lies in a folder that is walked already or holds one, so that no
/// file comes twice and no circle is entered. Without folders below, links to them are not followed.
/// Folders of runs are not entered, because pictures in them were drawn: those with a run.json, and those that
/// Weights & Biases makes (`wandb`). The folder itself may be one.
WalkEnd walk_data(const std::filesystem::path& folder,
                  Below below,
                  const std::function<void(const std::filesystem::directory_entry&)>& take);

/// walk_data() to the end, with a line in the log about folders of runs. @throws DataError if the folder cannot be read to its end
void walk_whole_folder(const std::filesystem::path& folder,
                       Below below,
                       const std::function<void(const std::filesystem::directory_entry&)>& take);

}  // namespace dalle2
