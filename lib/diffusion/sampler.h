// SPDX-License-Identifier: MIT
// How a sample walks from noise to an image: DDPM, DDIM, DPM-Solver++(2M).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "config/shared/layout.h"
#include "diffusion/loss.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// Standard normal noise of a shape.
using NoiseSource = std::function<at::Tensor(at::IntArrayRef)>;

/// What a sampling draws from: `given` if it is set, else a generator of the CPU for each row if there are
/// any, else one generator (none: the default one), moved to `device`.
NoiseSource noise_source(const NoiseSource& given,
                         const std::vector<at::Generator>& of_rows,
                         const std::optional<at::Generator>& generator,
                         const at::Device& device);

/// One step of a walk: from `time` to the less noisy `next`; -1 is the clean image.
struct TimePair {
  int64_t time = 0;
  int64_t next = 0;
  bool operator==(const TimePair&) const = default;
};

/// What the network said at a step.
struct Denoised {
  at::Tensor x_start;       ///< [B, C, H, W] clean image, clipped as the run wants it
  at::Tensor raw_fraction;  ///< [B, C, H, W] variance half, undefined without learned variance
  at::Tensor noise = {};    ///< [B, C, H, W] of DDIM; undefined: what x_start implies
};

/// A walk of one stage. It may remember earlier steps: make a new one for each run.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// The whole walk, noisiest step first.
  virtual std::vector<TimePair> time_pairs() const = 0;

  /// x at pair.next. @param times [B] int64, filled with pair.time
  virtual at::Tensor step(const at::Tensor& x,
                          const at::Tensor& times,
                          const TimePair& pair,
                          const Denoised& denoised,
                          const NoiseSource& noise) = 0;
};

/// Ancestral sampling over all T steps (Ho et al. 2020, algorithm 2). Draws noise at every step,
/// even at the last, where it is not used: the reference's sequence of draws.
std::unique_ptr<Sampler> make_ddpm_sampler(const NoiseSchedule& schedule,
                                           std::optional<LearnedVariance> variance);

struct DdimWalk {
  int64_t steps = 0;
  double eta = 0;                ///< 0 is deterministic
  bool previous_levels = false;  ///< the levels are those of the time before (alphas_cumprod_prev)
  /// Where it ends, as in the reference: 0 is the state of t = 0, which still holds a little noise; a
  /// prior's ends at -1, the clean embedding, with one step fewer than asked for, and at least 2.
  int64_t end = 0;
};
/// Song et al. 2020, eq. 12 and 16.
std::unique_ptr<Sampler> make_ddim_sampler(const NoiseSchedule& schedule, const DdimWalk& walk);

/// Denoised::noise as versions before 1.12.3 took it. @param raw what the network implies, not clipped
at::Tensor ddim_noise(const DdimLayout& layout,
                      const NoiseScheduleImpl& schedule,
                      Objective objective,
                      const at::Tensor& x,
                      const at::Tensor& times,
                      const at::Tensor& prediction,
                      const at::Tensor& raw);

/// The times of make_ddim_sampler: (10, 4, 0) gives (8,6) (6,4) (4,2) (2,0), (10, 4, -1) (7,4) (4,1) (1,-1).
std::vector<TimePair> ddim_time_pairs(int64_t timesteps, int64_t steps, int64_t end = 0);

/// DPM-Solver++(2M) (Lu et al. 2022, algorithm 2) with evenly spaced times and a first-order last
/// step to the clean image: diffusers' DPMSolverMultistepScheduler with its default settings. Draws
/// nothing.
std::unique_ptr<Sampler> make_dpmpp_sampler(const NoiseSchedule& schedule, int64_t steps);

/// Brings a guided prediction back to the spread of the conditional one (Lin et al. 2023, eq.
/// 15-16).
/// @param share 0 keeps `guided`, 1 takes the rescaled one whole
at::Tensor rescale_guidance(const at::Tensor& guided, const at::Tensor& conditional, double share);

/// Imagen's dynamic thresholding (Saharia et al. 2022, section 2.3): clips each sample to its own
/// `percentile` of |x|, at least 1, and divides by it.
at::Tensor dynamic_threshold(const at::Tensor& x_start, double percentile);

}  // namespace dalle2
