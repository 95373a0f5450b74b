// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/formats/wandb_file.h"

namespace dalle2 {

struct Gpu {
  std::string name;
  uint64_t memory_bytes = 0;
};

/// By the names of the service's own client: "gpu.0.temp".
struct GpuFigure {
  std::string name;
  double value = 0;
};

/// Figures of NVIDIA's GPUs by NVML, the library of the driver: it is looked for when the program runs.
class Nvml {
 public:
  /// Without the library, or a driver that works, there are no GPUs.
  Nvml();
  ~Nvml();

  std::vector<Gpu> gpus() const;
  /// What a GPU does not tell is left out.
  std::vector<GpuFigure> now() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

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
