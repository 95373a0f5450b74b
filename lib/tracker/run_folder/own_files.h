// SPDX-License-Identifier: MIT
// Which files are a run's own: what another run left is renamed, never overwritten. By its id a run
// knows its files again wherever they are moved or copied.
#pragma once

#include <ctime>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/files/folder_names.h"  // kRecordFile

namespace dalle2 {

/// A random UUID (RFC 9562, version 4): "0f8fad5b-d9cb-469f-a165-70867728950e".
/// @throws ResourceError if the system gives no random bytes
std::string make_run_id();
/// Whether `text` has the form of such an id.
bool is_run_id(const std::string& text);

/// latest.1.pth of a file, snapshots.1 of a folder.
std::string numbered_path(const std::string& path, int number);

/// The first number from `first` on under which none of `paths` was set aside before.
int free_number(const std::vector<std::string>& paths, int first = 1);

/// Renames a file or folder to the first free name: latest.pth to latest.1.pth, snapshots to
/// snapshots.1.
/// @param number the first one to try
/// @return its new name, if it was there and not empty. @throws ConfigError if it cannot be renamed
std::optional<std::string> set_aside(const std::string& path, int number = 1);

/// Which run is in data_path and which paths it has written to, kept in data_path/targets.json for
/// a later start that resumes it. A file that names its run is that run's, wherever it lies; of the
/// others those at a recorded path are this run's.
class OwnFiles {
 public:
  /// Reads the record, if there is one.
  /// @param marked_id the run's id where the record has none
  explicit OwnFiles(const std::string& data_path, const std::string& marked_id = "");

  /// Whether `path`, a file that names `written_by` as the run that saved it, is known to be another run's, whose
  /// savers may write into this folder. The files of a copied folder have the original's id and are not.
  bool is_of_another_run(const std::string& path, const std::string& written_by) const;
  /// False for a run of an earlier version, which kept no record: all files count as its own then.
  bool recorded() const { return recorded_; }
  /// Empty if none is recorded: in folders of earlier versions, and before start_over().
  const std::string& run_id() const { return run_id_; }
  /// Whether data_path is a copy of a folder that is still there: a copy is a run of its own.
  bool is_copy() const;
  bool contains(const std::string& path) const;
  /// Of a recorded path outside of data_path, whose files name no run: whether another run has renamed this run's file since the
  /// record was written. What is at the path now is then that run's.
  bool is_taken_over(const std::string& path) const;
  /// The paths of the record; absolute.
  std::vector<std::string> paths() const;
  /// Whether `path` is in data_path or a folder of it.
  bool is_below(const std::string& path) const;
  /// Whether `path`, which may be an address, is the checkpoint of elsewhere that the run started
  /// from: by its path, or by where it lies from data_path, which holds if both were moved.
  bool began_from(const std::string& path) const;

  /// What finish_as() noted; empty if the run is not known to have finished.
  const std::string& finished_as() const { return finished_as_; }
  /// The run has done all it was asked for. @param what that was, and where it ended
  void finish_as(const std::string& what);

  /// Begins the record of another run.
  /// @param paths its own from the beginning
  void start_over(const std::string& run_id,
                  const std::string& began_from,
                  const std::vector<std::string>& paths);
  /// Of a copied folder: what the original wrote elsewhere is the original's.
  void forget_elsewhere();
  /// Gives the run a (new) id: it was begun before there were ids, or its folder is a copy.
  void rename(const std::string& run_id);
  /// Takes everything for the run's own: it was begun before there were records.
  void own_all() { own_all_ = true; }
  /// `path` is the checkpoint that the run resumes from: it may be replaced.
  void own(const std::string& path) { also_own_ = key_of(path); }

  /// To be called before `path` is written: sets aside what another run left there.
  /// @param written_by the id of the run that the file at `path` names; empty if it names none
  /// @param must_write the run cannot do without this file: it is set aside each time
  /// @return where that is now. @throws ConfigError if it cannot be renamed, or if another run has
  /// written there twice since this start: the two share the path
  std::optional<std::string> claim(const std::string& path,
                                   const std::string& written_by = "",
                                   bool must_write = false);

 private:
  std::string key_of(const std::string& path) const;
  /// "../base.pth", all links resolved; empty for an address.
  std::string from_here(const std::string& path) const;
  void write() const;

  std::string data_path_, record_path_;
  std::string run_id_, home_;  // home_: where data_path was when the record was written
  bool recorded_ = false;
  bool own_all_ = false;
  // Relative to data_path if below it, so that it can be moved; else absolute.
  std::set<std::string> paths_;
  std::set<std::string> earlier_ids_;  // of the folders that this one is a copy of
  bool knows_earlier_ids_ = true;      // false: the record is of an earlier version
  std::set<std::string> contested_;    // written by others since this start
  std::set<std::string> claimed_;      // since this start
  timespec recorded_at_{};             // when the record was written that was read
  std::string also_own_, began_from_, began_from_here_, finished_as_;
};

}  // namespace dalle2
