// SPDX-License-Identifier: MIT
// What bench_step measures: a piece of work that is done again and again on tensors in memory.
#pragma once

#include <memory>
#include <string>

namespace dalle2 {

class Bench {
 public:
  Bench() = default;
  virtual ~Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  virtual void step() = 0;
  virtual void finish() {}  ///< after the last step, not measured
};

/// A training step of what a training file is of: one update of each unet of a decoder, or of a prior.
std::unique_ptr<Bench> make_training_bench(const std::string& path, bool bf16);

/// Samples of a decoder with DDIM. A step is one call; the first, which warms up, has few timesteps.
struct SamplingSetting {
  std::string config_path;
  std::string given_path;    ///< safetensors: `decoder.*`, `init_noise` and the conditions
  std::string samples_path;  ///< safetensors that finish() writes: `samples` of the last call
  int64_t timesteps = 50;
  double cond_scale = 3;
  bool bf16 = false;
};
std::unique_ptr<Bench> make_sampling_bench(const SamplingSetting& setting);

}  // namespace dalle2
