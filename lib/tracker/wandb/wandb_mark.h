// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace dalle2 {

/// A file that says how many records of log.jsonl a run of Weights & Biases has, at the service or in
/// folders on this machine. It survives a kill: the next start adds the others.
class WandbMark {
 public:
  explicit WandbMark(std::string path) : path_(std::move(path)) {}
  ~WandbMark();
  WandbMark(const WandbMark&) = delete;
  WandbMark& operator=(const WandbMark&) = delete;

  /// None if the file is not there, cannot be read, or is of another run.
  std::optional<int64_t> read(const std::string& run_id) const;
  void remove() const;
  /// Cheap: one write of a line as long as the one before. A write that fails leaves the older mark.
  void write(const std::string& run_id, int64_t records);

 private:
  std::string path_;
  int descriptor_ = -1;
  std::string line_;
};

}  // namespace dalle2
