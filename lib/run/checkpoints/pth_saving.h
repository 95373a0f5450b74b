// SPDX-License-Identifier: MIT
// Checkpoints that are written now, or from copies in host memory while training continues.
#pragma once

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "checkpoint/pickle/pth.h"

namespace dalle2 {

class PthSaving {
 public:
  /// Writes one of the values to a path, whole or not at all.
  using Write = std::function<void(const std::string& path)>;
  /// Makes the files, with one writer a value.
  using Job = std::function<void(const std::vector<Write>& writers)>;

  PthSaving() = default;
  /// Waits. An error that nobody has asked for is logged.
  ~PthSaving();
  PthSaving(const PthSaving&) = delete;
  PthSaving& operator=(const PthSaving&) = delete;

  /// Waits for the previous save, so that none is left out. Then runs `job` right away, or on a
  /// thread of its own, from copies of the values that are made before this returns. Memory of the
  /// copies is reused.
  /// @throws what the previous save threw, and without a thread what the job throws
  void start(bool in_background, std::vector<Value> values, Job job);
  /// @throws what the save threw, once
  void wait();
  /// The same without waiting: an error of a save that is still running is thrown by a later call.
  void check();

 private:
  std::vector<PthSnapshot> copies_;
  std::future<void> work_;
};

}  // namespace dalle2
