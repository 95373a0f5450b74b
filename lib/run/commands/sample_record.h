// SPDX-License-Identifier: MIT
// Which files of a folder `sample` wrote: only these may it replace or remove.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// The record lies in the folder of --out: a line for each file, before and after it is written, so that a sampling which is stopped
/// half-way is known to the next. A prior and a decoder may share a folder: neither touches the other's files.
class SampleRecord {
 public:
  /// Reads the record that earlier samplings left; without one, nothing in the folder counts as written.
  /// @param kind of the checkpoint: files of another kind's samplings stay
  SampleRecord(std::string folder, std::string kind);

  /// Of `names` those that are there, and that no sampling of this kind wrote, or that have been edited since.
  std::vector<std::string> others_among(const std::vector<std::string>& names) const;

  /// Before a file is written, and after.
  void writing(const std::string& name);
  void wrote(const std::string& name);
  /// All `names` are written: removes what earlier samplings of this kind wrote under other names, as far as that can be done.
  void finish(const std::vector<std::string>& names);

 private:
  struct Entry {
    std::string kind;
    /// Of the file's content; none: it was being written.
    std::optional<std::pair<uint64_t, uint32_t>> bytes_and_crc;
  };
  std::string path_of(const std::string& name) const;
  bool is_ours(const std::string& name) const;
  std::string line_of(const std::string& name, const Entry& entry) const;
  void write() const;
  void append(const std::string& name);

  std::string folder_, kind_;
  std::map<std::string, Entry> files_;
  bool is_foreign_ = false;  // what has the record's name is none
  bool is_open_ = false;     // this sampling has begun to write
};

}  // namespace dalle2
