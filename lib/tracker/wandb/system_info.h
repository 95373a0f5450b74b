// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#pragma once

#include <string>
#include <vector>

#include "io/formats/wandb_file.h"
#include "tracker/wandb/nvml.h"

namespace dalle2 {

/// The content of wandb-metadata.json: system, program, host, processor, memory, disk, GPUs.
std::string system_metadata(double start_unix_seconds, const std::vector<Gpu>& gpus);

/// Figures of now by the names of the service's own client, without "system.": memory of the machine
/// and of this process, its threads, processor time since the last call, the disk's use, and of each
/// GPU its load, memory, temperature and power.
class SystemStats {
 public:
  WandbItems now();
  std::vector<Gpu> gpus() const { return nvml_.gpus(); }

 private:
  Nvml nvml_;
  double cpu_seconds_ = 0, at_seconds_ = 0;
};

}  // namespace dalle2
