// SPDX-License-Identifier: MIT
// Training of a decoder: the loss of a stage, its evaluation, sampling. What all trainers share,
// such as updates and state, is in trainer/trainer.h.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>

#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Its parts are the unets. Usage:
///   DecoderTrainer trainer(decoder, config.train, device);
///   const at::Generator random = make_generator({seed, "train", epoch, i}, device);
///   const at::Tensor loss = trainer.step(inputs, 1, random);
///   trainer.update(1);
class DecoderTrainer : public Trainer {
 public:
  /// Takes out the unets that `unet_training_mask` excludes; the rest is as in Trainer.
  DecoderTrainer(Decoder decoder, const DecoderTrainConfig& config, const at::Device& device);

  /// Forward and backward of one batch, in chunks of the config's max_batch_size (none: the whole batch) weighted by
  /// their size: loss and gradients are those of the whole batch, and what is random is drawn for the whole batch, so
  /// the chunk size changes nothing. Gradients add up over calls until update().
  /// @param share of the batch in the update, where several make one
  /// @return the loss times the weight of `share`
  /// @throws ConfigError for a unet that is not there or not trained; DataError for an empty batch
  at::Tensor step(const DecoderInputs& inputs,
                  int64_t unet_number,
                  at::Generator generator,
                  const BatchShare& share = {});

  /// The same with everything random given, for the whole batch.
  at::Tensor step(const DecoderInputs& inputs,
                  int64_t unet_number,
                  const DecoderStepNoise& draws,
                  const BatchShare& share = {});

  /// The loss without gradients, with the decoder in eval mode meanwhile.
  at::Tensor evaluate(const DecoderInputs& inputs, int64_t unet_number, at::Generator generator);

  /// Samples with the averaged unets (the live ones with `use_non_ema`, or without averages).
  /// Afterwards every weight and mode is as before, even if it throws.
  /// @return [B, C, H, W] on the device
  at::Tensor sample(const DecoderSampleOptions& options, bool use_non_ema = false);

  /// With a memory budget, the levels of each unet that a backward pass computes again.
  void add_choices(Dict& own) const override;
  /// Where the budget is still the same. A new one is for a new choice.
  void take_choices(const Cursor& own) override;

  int64_t num_unets() const { return num_parts(); }
  Decoder decoder() const { return decoder_; }

 private:
  void list_state(TrainState& state) const override;

  mutable Decoder decoder_;
  std::optional<double> memory_budget_gib_;
};

}  // namespace dalle2
