// SPDX-License-Identifier: MIT
// What a command does that runs as several processes: it starts them, or finds that another program
// has; they meet, and what ends one ends all.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/shared/train_options.h"
#include "dist/process_group.h"
#include "run/device/compute_threads.h"

namespace dalle2 {

/// Starts the command of this process again, as `processes` processes without --nproc-per-node.
/// @throws ConfigError where another program starts the processes already
ExitCode launch(int64_t processes);

/// How the processes of a command meet.
struct Meeting {
  PassWork work = {};                      ///< pass_work()
  std::vector<std::string> warnings = {};  ///< of the config, to be logged on rank 0
  std::chrono::seconds hang_timeout = GroupOptions().hang_timeout;
  /// Where the tensors of a rank are. A process that is alone reports itself a device that is not there.
  std::function<at::Device(const World&)> device_of = {};
};
/// That of a command with a config.
Meeting meeting_of(const SharedTrainConfig& config,
                   const PassWork& work,
                   const std::vector<std::string>& warnings);
/// That of a command whose device is an option. @param device of --device
Meeting meeting_of(const std::string& device);

/// Runs `part` as the process that the environment says this is, with the number of threads that choose_threads() gives.
/// @return what `part` returns, or kStopped for a signal before the processes had met
ExitCode as_one_of_several(const Meeting& meeting,
                           const std::function<ExitCode(ProcessGroup&)>& part);

/// Ranks of different configs would compute what nobody asked for, or wait for each other in vain.
/// @param device of the config: only a GPU's name asks for LibTorch's CUDA half, which it loads
/// @throws ConfigError on all ranks, naming what differs
void check_same_config(ProcessGroup& group,
                       const std::string& full_json,
                       const std::string& device);

/// Says that nothing was trained.
ExitCode stopped_before_the_start(int64_t signal);

}  // namespace dalle2
