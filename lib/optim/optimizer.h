// SPDX-License-Identifier: MIT
// Adam and AdamW over flat buffers, equal to torch.optim's parameter by parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "optim/flat_parameters.h"

namespace dalle2 {

/// The learning rate of a step, as a closed form: linear warm-up times cosine annealing.
///   lr(k) = base * (1 + cos(pi k / T)) / 2 * min(1, (k + 1) / W)
/// for the k-th optimizer step, k from 0. The cosine rises again after T, as the reference's does
/// (CosineAnnealingLR, eta_min 0). Differs from upstream after a resume: upstream continues with the
/// rate that its warm-up was constructed with.
struct LrSchedule {
  double base_lr = 0.0;
  std::optional<int64_t> warmup_steps = {};            ///< W; none: no warm-up
  std::optional<int64_t> cosine_decay_max_steps = {};  ///< T; none: no annealing
  double factor = 1.0;                                 ///< of every rate, besides the config's

  /// Rate of optimizer step `step` (0 is the first).
  double at(int64_t step) const;
  /// The same without warm-up: what the reference's scheduler holds.
  double undampened(int64_t step) const;
};

struct OptimizerOptions {
  double weight_decay = 1e-2;  ///< 0 makes it Adam, else AdamW (decoupled decay)
  double beta1 = 0.9, beta2 = 0.99;
  double eps = 1e-8;
  bool group_wd_params = true;  ///< parameters with ndim < 2 do not decay
};

/// Parameters that share a weight decay, in the order torch.optim numbers them.
struct ParameterGroup {
  double weight_decay = 0.0;
  std::vector<size_t> members;  ///< indices into FlatParameters::parameters()
};

/// First and second moments of all parameters. [parameter_span] float32 each
struct FlatMoments {
  at::Tensor exp_avg, exp_avg_sq;
};

/// What torch.optim keeps for a parameter that has been updated at least once.
struct ParameterState {
  int64_t step = 0;                ///< updates so far
  at::Tensor exp_avg, exp_avg_sq;  ///< views of the flat moments, shaped like the parameter
};

/// What an update on the CPU writes besides, in the same pass over memory. In the layout of the flat buffer
struct UpdateCompanions {
  at::Tensor average;         ///< takes in the new weights; undefined: none does
  double average_weight = 0;  ///< the share of the new weights
  at::Tensor halves;          ///< bfloat16: becomes the new weights; undefined: they are not wanted
};

class Optimizer {
 public:
  Optimizer(const FlatParameters& parameters, const OptimizerOptions& options);

  /// One update of every parameter that has received a gradient; the others are left alone, their
  /// step count too, as torch.optim leaves those whose `.grad` is None.
  /// @param grad_divisor [] float32 on the parameters' device: gradients are divided by it first
  /// @param found_inf [] float32 on the same device: where it is 1 nothing changes, where it is 0
  ///        all is updated except the step counts, which wait for count_update(), so that nobody
  ///        has to read found_inf now
  /// @param companions only where takes_companions(). The average takes in all parameters, the halves those that are updated; where
  ///        found_inf is 1 both are left alone
  void step(FlatGradients& gradients,
            double lr,
            const at::Tensor& grad_divisor,
            const at::Tensor& found_inf,
            const UpdateCompanions& companions = {});

  /// Whether step() takes companions: all moments are here, on the CPU.
  bool takes_companions() const;

  /// Counts the last step() once its `found_inf` has turned out to be 0. Call it before the next step().
  void count_update();

  /// From now on updates this stretch of the buffer alone and keeps the moments of no other: the
  /// rest is others' work. What was there is forgotten. @param slice may reach behind the parameters
  void keep_slice(const FlatSlice& slice);
  /// What is kept. [length] each
  const FlatMoments& moments() const { return moments_; }

  /// Whether all moments that are kept are finite. Waits for the device.
  bool is_finite() const { return all_finite({moments_.exp_avg, moments_.exp_avg_sq}); }

  const OptimizerOptions& options() const { return options_; }
  bool is_adamw() const { return options_.weight_decay != 0.0; }
  const std::vector<ParameterGroup>& groups() const { return groups_; }

  /// State of the i-th of FlatParameters::parameters(); none if it was never updated.
  /// @param whole the moments of all parameters, moments() where no slice was asked for
  std::optional<ParameterState> state(size_t i, const FlatMoments& whole) const;
  std::optional<ParameterState> state(size_t i) const { return state(i, moments_); }
  /// Copies `state` in, of a slice what lies in it. Shapes have to be those of the parameter.
  void set_state(size_t i, const ParameterState& state);
  /// No parameter was ever updated.
  void forget();

 private:
  /// One fused call: stretches of the buffer with the same weight decay. Neighbours that are
  /// updated alike are one stretch, so in the usual case there is one for each group.
  struct Call {
    double weight_decay = 0.0;
    std::vector<FlatSlice> ranges;  ///< of the whole buffer
    std::vector<at::Tensor> values, exp_avgs, exp_avg_sqs;
    std::vector<at::Tensor> steps;  ///< [] float32 each, on the device
    std::vector<size_t> firsts;     ///< the first parameter of each range
  };
  void build_calls(const std::vector<bool>& active);
  void update_on_cpu(const at::Tensor& grads,
                     double lr,
                     double grad_factor,
                     const UpdateCompanions& companions);
  void add_range(Call& call, size_t first, const FlatSlice& range) const;

  OptimizerOptions options_;
  at::Tensor values_;               // [parameter_span]
  FlatSlice slice_;                 // of values_
  FlatMoments moments_;             // [slice_.length()]
  std::vector<FlatEntry> entries_;  // FlatParameters::parameters()
  std::vector<size_t> by_offset_;   // entries in the order of the buffer
  std::vector<double> decay_of_;
  std::vector<int64_t> steps_;
  std::vector<ParameterGroup> groups_;
  std::vector<Call> calls_;
  std::vector<FlatSlice> left_alone_;  // by the calls
  std::vector<bool> active_;           // what calls_ was built for; empty: not built
};

}  // namespace dalle2
