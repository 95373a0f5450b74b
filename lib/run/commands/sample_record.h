// SPDX-License-Identifier: MIT
// Which files of a folder `sample` wrote: only these may it replace or remove.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// The record lies in the folder of --out, with the size and CRC-32 of each file.
class SampleRecord {
 public:
  /// Reads the record that an earlier sampling left; without one, nothing in the folder counts as written.
  explicit SampleRecord(std::string folder);

  /// Whether a sampling wrote the file as it is now.
  bool wrote(const std::string& name) const;
  /// Of `names` those that are there, and that no sampling wrote.
  std::vector<std::string> others_among(const std::vector<std::string>& names) const;
  /// Before files are written: removes what an earlier sampling wrote under other names, and records the
  /// new ones, so that a sampling that is stopped half-way is known to the next.
  void begin(const std::vector<std::string>& names);
  /// After files are written: records what they hold now.
  void finish();

 private:
  struct Entry {
    uint64_t bytes = 0;
    uint32_t crc32 = 0;
    bool operator==(const Entry&) const = default;
  };
  std::string path_of(const std::string& name) const;
  std::optional<Entry> entry_of(const std::string& name) const;
  void write() const;

  std::string folder_;
  std::map<std::string, std::optional<Entry>> files_;  // none: being written
  bool is_foreign_ = false;                            // a file of the record's name is none
};

}  // namespace dalle2
