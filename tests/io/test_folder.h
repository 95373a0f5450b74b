// SPDX-License-Identifier: MIT
// Fixtures and scratch folders for tests that know no tensor.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

namespace dalle2::test {

/// Folder of the fixtures of one unit: fresh ones if DALLE2_PARITY_DIR holds them, else the
/// committed.
inline std::string parity_folder(const std::string& unit) {
  const char* fresh = std::getenv("DALLE2_PARITY_DIR");
  if (fresh != nullptr && std::filesystem::is_directory(std::string(fresh) + "/" + unit)) {
    return std::string(fresh) + "/" + unit;
  }
  return std::string(DALLE2_SOURCE_DIR) + "/tests/parity/fixtures/" + unit;
}

/// A fresh folder that goes with its scope.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dalle2_io_XXXXXX").string();
    path_ =
        mkdtemp(pattern.data()) != nullptr ? pattern : throw std::runtime_error("mkdtemp failed");
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Written in place, as another program would.
inline void put_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace dalle2::test
