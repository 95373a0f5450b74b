// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace dalle2 {

/// How far a run of Weights & Biases is, at the service or in folders on this machine.
struct WandbProgress {
  int64_t records = 0;  ///< of log.jsonl that it has
  /// After the service's step of the last record that was given to it; none in files of version 0.1.
  std::optional<int64_t> next_step = {};
};

/// A file that says how far runs are, a line for each run: several loggers share it. It survives a kill: the
/// next start adds the other records.
class WandbMark {
 public:
  explicit WandbMark(std::string path) : path_(std::move(path)) {}
  ~WandbMark();
  WandbMark(const WandbMark&) = delete;
  WandbMark& operator=(const WandbMark&) = delete;

  /// None if the file is not there, cannot be read, or says nothing of the run.
  std::optional<WandbProgress> read(const std::string& run_id) const;
  void remove() const;
  /// Cheap: one write of a line as long as the one before. A write that fails leaves the older mark. The
  /// first one may add a line: those of all loggers come one after another.
  void write(const std::string& run_id, const WandbProgress& progress);

 private:
  void append(const std::string& line);

  std::string path_;
  int descriptor_ = -1;
  std::string run_id_, line_;  // written last
  int64_t place_ = -1;         // of that line in the file; -1: it has none
};

}  // namespace dalle2
