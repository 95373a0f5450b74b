// SPDX-License-Identifier: MIT
// Figures of NVIDIA's GPUs by NVML, the library of the driver: it is looked for when the program runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace dalle2
