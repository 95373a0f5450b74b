// SPDX-License-Identifier: MIT
// What the loop of every kind of run needs: the device, the tracker, the progress line, the times
// of a step, the request to stop, and random numbers by address.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"
#include "dist/process_group.h"
#include "optim/precision.h"
#include "run/loop/run_position.h"
#include "tracker/log/progress.h"
#include "tracker/tracker.h"
#include "trainer/step_times.h"

namespace dalle2 {

/// A fault that training has no part in: a lost network, a shard list that cannot be read. The state
/// is sound, so it is saved before the run ends with the fault.
struct OutsideFault {
  std::exception_ptr fault;  ///< an Error
};

/// What `part` returns. Of several ranks the fault of one has to reach the others as a StoppedError
/// at the same place. @throws OutsideFault instead of an Error; StoppedError and PeerError as they
/// are
template <class Part>
auto from_outside(Part&& part) -> decltype(part()) {
  try {
    return part();
  } catch (const StoppedError&) {
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const Error&) {
    throw OutsideFault{std::current_exception()};
  }
}

/// What a process of a run is.
struct RunProcess {
  bool quiet = false;             ///< no progress, no lines of steps
  ProcessGroup* group = nullptr;  ///< null: alone; else it has to outlive the run
  StartOptions start = {};        ///< --fresh, --back-to
};

struct SessionOptions {
  const TrackerConfig& tracker;
  const SharedTrainConfig& train;
  int64_t seed = 0;
  RunProcess process = {};
};

/// The /train/device of a config. Prepares the process for it (current device, deterministic
/// algorithms). Of several processes on a machine, each takes the GPU of its local rank. @throws
/// ConfigError for a device that does not exist
at::Device prepare_device(const SharedTrainConfig& train, const World& world = {});

/// " on each of 4 ranks", for messages; empty where the process is alone.
std::string of_each_rank(const ProcessGroup& group);

/// Who does a part that RunSession::together() runs, and what its faults are.
struct Together {
  bool on_main = false;       ///< rank 0 alone, for which the others wait
  bool from_outside = false;  ///< an Error is an OutsideFault
};

class RunSession {
 public:
  /// Checks what can be checked of the tracker's config, and logs program, device and threads;
  /// writes nothing.
  /// @param position gives the placeholders that save targets may name
  /// @throws ConfigError
  RunSession(const SessionOptions& options, RunPosition& position);

  const at::Device& device() const { return device_; }
  Tracker& tracker() { return tracker_; }
  const Tracker& tracker() const { return tracker_; }
  Progress& progress() { return progress_; }
  StepTimes& times() { return times_; }
  bool quiet() const { return quiet_; }
  /// What --quiet hides ends where the run does: how it ends is shown.
  void end_quiet() const;
  int64_t seed() const { return seed_; }
  ProcessGroup& group() const { return *group_; }

  /// A generator addressed by seed, purpose, epoch and step. Draws for a sample are addressed by
  /// its place among the samples of all ranks, so the number of ranks changes nothing.
  at::Generator generator(std::string_view purpose, int64_t epoch, int64_t step) const;

  /// Whether a signal has asked any rank to stop. The answer is that of ProcessGroup::heard_stop(),
  /// and so the same on all ranks. The first time, it also writes the line in the log.
  bool stop_asked();
  /// Whether stop_asked() has returned true.
  bool stopped() const { return stopped_; }
  /// For use inside a validation or a sampling. @throws StoppedError if stop_asked()
  void throw_if_stop_asked();
  /// The same for work that each rank does by itself: only a signal to this process counts. The
  /// ranks agree afterwards, in together(). Also tells the others that this rank is still busy.
  void throw_if_signalled() const;
  /// Runs work that each rank does by itself. @throws StoppedError on all ranks if it was thrown on
  /// any; an OutsideFault on the rank that has it, and then StoppedError on the others
  void together(const std::string& what, const std::function<void()>& part, Together how = {});

  /// Each rank looks for the data by itself. @param names of what it found, or a hash of them
  /// @param what the data are, "pictures" @param key of the config that names them
  /// @throws DataError if another rank has other names
  void check_same_data(const std::string& names, const char* what, const char* key);

  /// Whether more than `seconds` have passed since group().heard_seconds() was `since`: the same
  /// answer on all ranks.
  bool is_due(double since, int64_t seconds) const;

 private:
  at::Device device_;
  int64_t seed_;
  ProcessGroup alone_;
  ProcessGroup* group_;
  bool quiet_;
  Tracker tracker_;
  Progress progress_;
  StepTimes times_;
  bool stopped_ = false;
};

}  // namespace dalle2
