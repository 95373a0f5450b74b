// SPDX-License-Identifier: MIT
// An outbox beside a file that a run saves again and again.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/files/atomic_file.h"
#include "support/temp_dir.h"
#include "tracker/places/uploads.h"

namespace dalle2::test {

inline FileToSend file_for(const std::string& target,
                           const std::string& path,
                           const std::string& to = "there") {
  return {.path = path, .to = to, .target = target, .kind = "checkpoint"};
}

/// The whole end. @return how many files are left
inline size_t finish(Uploads& uploads, double seconds) {
  uploads.begin_end();
  wait_until_sent([&] { return uploads.is_done(); }, [] { return false; }, seconds);
  uploads.end();
  return uploads.waiting().size();
}

struct OutboxFolder {
  /// What an Uploads has said of it.
  struct Errors {
    std::mutex mutex;
    std::vector<std::string> all;

    std::vector<std::string> take() {
      const std::lock_guard lock(mutex);
      return std::exchange(all, {});
    }
  };
  std::shared_ptr<Errors> errors = std::make_shared<Errors>();
  Uploads::OnError on_error = [errors = errors](const std::string& error) {
    const std::lock_guard lock(errors->mutex);
    errors->all.push_back(error);
  };
  TempDir dir;
  std::string file = dir / "checkpoint.pth", outbox = dir / "outbox";

  const std::string& save(const std::string& content) const {
    write_file_atomically(file, content);
    return file;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& item : std::filesystem::directory_iterator(outbox)) {
      found.push_back(item.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

}  // namespace dalle2::test
