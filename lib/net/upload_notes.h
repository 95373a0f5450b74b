// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

namespace dalle2 {

/// Where an upload in parts keeps what it has sent, so that a later call with the same file goes on from
/// there: a JSON text of the upload's own. An empty text says that nothing is under way. Notes of S3 hold
/// no secret and may lie on a disk. Notes of the hub hold signed addresses: they stay in memory.
struct UploadNotes {
  std::function<std::string()> load;
  std::function<void(const std::string& text)> keep;
};

}  // namespace dalle2
