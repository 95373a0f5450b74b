// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#pragma once

#include <string>
#include <vector>

#include "io/formats/wandb_file.h"

namespace dalle2 {

/// Figures of the machine and of this process; of NVIDIA's GPUs by NVML, the library of the driver, if it
/// is there when the program runs.
class SystemStats {
 public:
  SystemStats();
  ~SystemStats();
  SystemStats(const SystemStats&) = delete;
  SystemStats& operator=(const SystemStats&) = delete;

  /// The content of wandb-metadata.json: system, program, host, processor, memory, disk, GPUs.
  std::string metadata(double start_unix_seconds) const;
  /// Figures of now by the names of the service's own client ("gpu.0.temp"), without "system.": memory of
  /// the machine and of this process, its threads, processor time since the last call, the disk's use, and
  /// of each GPU its load, memory, temperature and power. What a GPU does not tell is left out.
  WandbItems now();

 private:
  template <class... Arguments>
  bool nvml(const char* function, Arguments... arguments) const;

  void* nvml_ = nullptr;     // the library; null: no GPUs
  std::vector<void*> gpus_;  // null: NVML does not give that one
  double cpu_seconds_ = 0, at_seconds_ = 0;
};

}  // namespace dalle2
