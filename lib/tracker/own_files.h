// SPDX-License-Identifier: MIT
// Which files are a run's own: what another run left is renamed, never overwritten.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace dalle2 {

/// The file in data_path that tells which files are the run's own.
inline constexpr const char* kRecordFile = "targets.json";

/// The first number from `first` on under which none of `paths` was set aside before.
int free_number(const std::vector<std::string>& paths, int first = 1);

/// Renames a file or folder to the first free name: latest.pth to latest.1.pth, snapshots to
/// snapshots.1.
/// @param number the first one to try
/// @return its new name, if it was there and not empty. @throws ConfigError if it cannot be renamed
std::optional<std::string> set_aside(const std::string& path, int number = 1);

/// The paths a run has written to, kept in data_path/targets.json, for a later start that goes on
/// with it. What lies at a path that is not among them is another run's.
class OwnFiles {
 public:
  /// Reads the record, if there is one.
  explicit OwnFiles(const std::string& data_path);

  /// False for a run of an earlier version, which kept no record: all files count as its own then.
  bool recorded() const { return recorded_; }
  bool contains(const std::string& path) const;
  /// The paths of the record; absolute.
  std::vector<std::string> paths() const;
  /// Whether `path` is the checkpoint of elsewhere that the run started from.
  bool began_from(const std::string& path) const { return began_from_ == key_of(path); }

  /// Begins the record of another run.
  /// @param paths its own from the beginning
  void start_over(const std::string& began_from, const std::vector<std::string>& paths);
  /// Takes everything for the run's own: it was begun before there were records.
  void own_all() { own_all_ = true; }

  /// `path` is the checkpoint that is gone on from: it may be replaced.
  void own(const std::string& path) { also_own_ = key_of(path); }

  /// To be called before `path` is written: sets aside what another run left there.
  /// @return where that is now. @throws ConfigError if it cannot be renamed
  /// A path that the run has written to counts as another's too once something else has written
  /// there since wrote(); the second time that is an error: two runs share the path.
  std::optional<std::string> claim(const std::string& path);
  /// Remembers what `path` looks like now that the run has written it.
  void wrote(const std::string& path);

 private:
  std::string key_of(const std::string& path) const;
  void write() const;
  bool is_replaced(const std::string& path) const;

  std::string data_path_, record_path_;
  bool recorded_ = false;
  bool own_all_ = false;
  // Relative to data_path if below it, so that it can be moved; else absolute.
  std::set<std::string> paths_;
  std::map<std::string, std::string> stamps_;  // size and time of change, by path
  std::set<std::string> contested_;            // replaced by others since this start
  std::string also_own_, began_from_;
};

}  // namespace dalle2
