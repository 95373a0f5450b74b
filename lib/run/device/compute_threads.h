// SPDX-License-Identifier: MIT
// How many threads compute on the CPU, and how they wait. The number decides in which order sums are added, and so the
// last bits of a run: it follows from the config and from what the process may use, never from the load.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>

#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/vae/vae_run_config.h"
#include "dist/world.h"

namespace dalle2 {

/// Cores whose time the control groups of this process, and those above them, let it use: 1.5, for instance. 0: no limit.
/// @param root holds `proc` and `sys`
double core_quota(const std::filesystem::path& root = "/");

/// Seconds that the threads of this process have run, and have waited while others had the cores.
struct CoreTimes {
  double ran = 0, waited = 0;
};
/// Of all threads that the process has now; zeros where the kernel does not count. @param threads a folder for each
CoreTimes core_times(const std::filesystem::path& threads = "/proc/self/task");

/// Multiply-adds of the forward pass of one sample, from the config alone: those of the 3x3 convolutions, or of the matrices
/// of a transformer. Of a decoder, by the trained stage that takes the most.
double sample_work(const LoadedDecoderConfig& loaded);
double sample_work(const LoadedPriorConfig& loaded);
double sample_work(const LoadedVaeConfig& loaded);
double sample_work(const LoadedClipConfig& loaded);

/// What decides how many threads serve a run.
struct PassWork {
  double multiply_adds =
      0;  ///< of the forward pass of the samples that go through at once; 0: not known
  int64_t samples = 1;  ///< that lanes could share (trainer/lanes.h); 1: none
};
template <class Loaded>
requires requires(const Loaded& config) {
  sample_work(config);
}
PassWork pass_work(const Loaded& loaded) {
  const int64_t batch = loaded.config.data.batch_size;
  const int64_t samples = std::min(batch, loaded.config.train.max_batch_size.value_or(batch));
  // As ModelPlan::has_lanes of the trainers.
  bool has_lanes = !std::is_same_v<Loaded, LoadedVaeConfig>;
  if constexpr (std::is_same_v<Loaded, LoadedClipConfig>)
    has_lanes = !loaded.config.clip.vision_cfg.is_resnet();
  return {sample_work(loaded) * static_cast<double>(samples), has_lanes ? samples : 1};
}

/// What limits the threads of a process. 0: it does not.
struct CoreLimits {
  int64_t cores = 1;  ///< that it may run on; LibTorch counts two threads of a core as one
  double quota = 0;   ///< core_quota()
  int64_t per_task = 0, on_node = 0;  ///< SLURM_CPUS_PER_TASK, SLURM_CPUS_ON_NODE
  int64_t processes = 1;              ///< of the run on this machine
  bool is_bound = false;  ///< srun has bound it to `cores`, else the processes share them
};
/// The most threads that a process should compute with, at least 1.
int64_t allowed_threads(const CoreLimits& limits);

/// With fewer multiply-adds, and samples too few for lanes, one thread computes: the operations are so short that several would mostly
/// wait for each other.
inline constexpr double kWorkOfSeveralThreads = 2.5e8;
/// Sets the number of threads that compute, unless OMP_NUM_THREADS gives it: as many as are allowed, or one for little work.
/// @param work pass_work() of the config
void choose_threads(const World& world, const PassWork& work = {});

/// What computes, or has computed, a run on the CPU.
struct ComputedWith {
  int64_t threads = 0;
  std::string processor = "";  ///< its name and the instructions that LibTorch uses
};
ComputedWith computing_with();

/// What keeps a resumed run from the bits of one without a stop; empty: nothing.
/// @param saved what the checkpoint says @param now what this start has chosen; its threads become those of `saved` if they may
/// @param is_given whether OMP_NUM_THREADS gives the number
std::string difference_of_resume(const ComputedWith& saved,
                                 ComputedWith& now,
                                 int64_t allowed,
                                 bool is_given);
/// Computes with as many threads as the run did before, if this process may. @return difference_of_resume()
std::string resume_threads(const ComputedWith& saved, const World& world);

/// Whether other programs use the cores. @param before, now some time in which the threads of this process ran and waited
bool cores_are_busy(bool were_busy, const CoreTimes& before, const CoreTimes& now);

/// Looks twice a second whether other programs use the cores. Threads that wait for work spin for milliseconds: best on idle cores,
/// but on a busy machine it keeps the thread that they wait for from its core. There, they sleep at once. The first time that
/// the threads wait for a core for more than half as long as they run, a line says so.
class CoreWatch {
 public:
  /// @param tells whether this process writes the line
  explicit CoreWatch(bool tells);
  ~CoreWatch();

 private:
  void watch(bool tells);
  void sleep_at_once(bool yes);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  bool sleeps_ = false;
  std::thread surplus_, watcher_;
};

}  // namespace dalle2
