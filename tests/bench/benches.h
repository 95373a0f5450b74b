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

/// Name of the scope (RECORD_USER_SCOPE) in which a bench updates the weights.
inline constexpr const char* kUpdateScope = "update of the weights";

/// Floating-point operations a second of a product or a 3x3 convolution, the faster one.
struct MachineRates {
  double in_float = 0, in_half = 0;
};

/// Prints where the time of a step goes, on one thread, and the least that it needs at this machine's rates. Operations that LibTorch
/// records (its own, and our kernels) have clocks around them; what lies outside is calls. Steps alternate: as they are,
/// recorded, and with clocks; the faster half of each counts. What records cost, which is more than in a loop, and the clocks are
/// taken off. @param steps of each @return whether the rows make the step to within 5 %
bool print_account(Bench& bench, int steps, const MachineRates& rates);

}  // namespace dalle2
