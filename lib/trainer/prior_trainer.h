// SPDX-License-Identifier: MIT
// Training of a diffusion prior: its loss, its evaluation, sampling. What all trainers share, such
// as updates and state, is in trainer/trainer.h.
#pragma once

#include <ATen/core/Generator.h>

#include "config/prior/prior_run_config.h"
#include "diffusion/prior/prior.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Its one part is the network. Usage:
///   PriorTrainer trainer(prior, config.train, device);
///   const at::Generator random = make_generator({seed, "train", epoch, i}, device);
///   const at::Tensor loss = trainer.step(inputs, random);
///   trainer.update();
class PriorTrainer : public Trainer {
 public:
  PriorTrainer(DiffusionPrior prior, const PriorTrainConfig& config, const at::Device& device);

  /// Forward and backward of one batch, as DecoderTrainer::step().
  /// @return [] the loss times the weight of `share`, detached: reading it synchronises
  /// @throws DataError for inputs that do not fit
  at::Tensor step(const PriorInputs& inputs, at::Generator generator, const BatchShare& share = {});

  /// The same with everything random given, for the whole batch.
  at::Tensor step(const PriorInputs& inputs,
                  const PriorStepNoise& draws,
                  const BatchShare& share = {});

  /// The loss without gradients, in eval mode. @param averaged takes the averaged weights if there
  /// are any, else the live ones
  at::Tensor evaluate(const PriorInputs& inputs, at::Generator generator, bool averaged = false);

  /// DiffusionPrior::p_sample_loop with the averaged network (the live one with `use_non_ema`, or
  /// without averages), in chunks of the config's max_batch_size texts. Afterwards every weight and mode
  /// is as before, even if it throws. @return [B, D] on the device
  at::Tensor p_sample_loop(const PriorSampleOptions& options, bool use_non_ema = false);

  DiffusionPrior prior() const { return prior_; }

 private:
  void list_state(TrainState& state) const override;

  DiffusionPrior prior_;
};

}  // namespace dalle2
