// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// The shards that a command makes for a folder (its option --out), and the arrays beside them. They are
/// written into folder(), which is OUT/shards.part, and take their place in OUT when all are there. A
/// command that is killed leaves that folder, which the next command removes.
class NewShards {
 public:
  /// @param overwrite replace the numbered shards of OUT, their arrays and their manifests
  /// @param names of shards to be written, if they may have no number
  /// @throws ConfigError OUT holds such files and `overwrite` is off, another process of this machine
  /// makes shards there, or the folder cannot be made
  NewShards(std::string out, bool overwrite, const std::vector<std::string>& names = {});
  /// Removes what finish() has not put in its place.
  ~NewShards();
  NewShards(const NewShards&) = delete;
  NewShards& operator=(const NewShards&) = delete;

  /// Where processes write shards for `out`.
  static std::string folder(const std::string& out);
  /// Puts files of the folder in their place, and removes what OUT held before. @return the names of that
  /// @throws ConfigError there is another file of that name, DataError
  std::vector<std::string> finish(const std::vector<std::string>& names);

 private:
  std::string out_;
  bool overwrite_;
  std::vector<std::string> earlier_;
  int descriptor_ = -1;  // of the folder: its lock, which ends with the process
  bool made_out_ = false;
  bool is_stuck_ = false;  // the folder holds finished shards that cannot be moved
};

}  // namespace dalle2
