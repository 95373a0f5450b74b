// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#pragma once

#include <string>

#include "io/formats/wandb_file.h"

namespace dalle2 {

/// The content of wandb-metadata.json: system, program, host, processor, memory, disk.
std::string system_metadata(double start_unix_seconds);

/// Figures of now by the names of the service's own client, without "system.": memory of the machine
/// and of this process, its threads, processor time since the last call, the disk's use.
class SystemStats {
 public:
  WandbItems now();

 private:
  double cpu_seconds_ = 0, at_seconds_ = 0;
};

}  // namespace dalle2
