// SPDX-License-Identifier: MIT
// What a folder of pictures holds that cannot be used: links that lead nowhere, as a copy on another machine leaves them, and
// pictures of kinds that are not read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace dalle2 {

/// Whether an entry is a link whose target does not exist or cannot be reached.
bool is_lost_link(const std::filesystem::path& path);

/// "2 links whose targets do not exist or cannot be reached"
std::string counted_lost_links(size_t count);

/// One warning that names them, or nothing if there are none.
/// @param links paths below the folder, in any order
void warn_of_lost_links(const std::string& folder, std::vector<std::string> links);

/// Counts pictures of kinds that are not read, such as .bmp, and says what to do.
class UnreadPictures {
 public:
  /// To be called for each file. @param name of a file or of a member of a tar
  void see(const std::filesystem::path& name);
  /// ", but 2 pictures of kinds that are not read (2 .bmp). Convert them ..."; empty without.
  std::string but() const;
  /// One warning, or nothing if there are none.
  void tell(const std::string& folder) const;

 private:
  std::string text() const;

  std::map<std::string, int64_t> counts_;  // by extension
};

}  // namespace dalle2
