// SPDX-License-Identifier: MIT
// One training step of a diffusion prior and everything it keeps: weights, optimizer, average, step
// count. It knows nothing of epochs, files or loggers.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/lora_file.h"
#include "checkpoint/state_dict.h"
#include "config/prior_train_config.h"
#include "diffusion/prior.h"
#include "diffusion/text_encoder.h"
#include "optim/precision.h"
#include "trainer/stage_times.h"
#include "trainer/update_outcome.h"

namespace dalle2 {

struct PriorTrainerState;

/// Usage:
///   PriorTrainer trainer(prior, config.train, device);
///   const at::Generator random = make_generator({seed, "train", epoch, i}, device);
///   const at::Tensor loss = trainer.step(inputs, random);
///   trainer.update();
class PriorTrainer {
 public:
  /// Moves the prior to `device`, gives it the adapters of `lora`, and lays what is trained out in
  /// flat buffers.
  /// @throws ConfigError for a warm-up of no steps, betas that are not two, ...
  PriorTrainer(DiffusionPrior prior, const PriorTrainConfig& config, const at::Device& device);
  ~PriorTrainer();
  PriorTrainer(const PriorTrainer&) = delete;
  PriorTrainer& operator=(const PriorTrainer&) = delete;

  /// Forward and backward of one batch, in chunks of max_batch_size (default: the config's; none:
  /// the whole batch) weighted by their size: loss and gradients are those of the whole batch, and
  /// what is random is drawn for the whole batch, so the chunk size changes nothing. Gradients add
  /// up over calls until update().
  /// @param weight of this call's loss: the share of its batch where several make one update
  /// @return [] the loss times `weight`, detached: reading it synchronises
  /// @throws DataError for inputs that do not fit
  at::Tensor step(const PriorInputs& inputs,
                  at::Generator generator,
                  std::optional<int64_t> max_batch_size = std::nullopt,
                  double weight = 1.0);

  /// The same with everything random given, for the whole batch.
  at::Tensor step(const PriorInputs& inputs,
                  const PriorStepNoise& draws,
                  std::optional<int64_t> max_batch_size = std::nullopt,
                  double weight = 1.0);

  /// The loss without gradients, in eval mode. @param averaged of the averaged weights, where there
  /// are some; else of the live ones
  at::Tensor evaluate(const PriorInputs& inputs,
                      at::Generator generator,
                      bool averaged = false,
                      std::optional<int64_t> max_batch_size = std::nullopt);

  /// Clips the gradients, steps the optimizer at the scheduled rate, averages, counts the step. If
  /// the loss or the gradient is not finite nothing changes, but for the loss scale of fp16, and
  /// the update counts as skipped. On a GPU it waits for nothing but the update before.
  void update();

  /// DiffusionPrior::sample and p_sample_loop with the averaged network (the live one with
  /// `use_non_ema`, or without averages), in chunks of max_batch_size texts. Afterwards every
  /// weight and mode is as before, also if it throws. @return [B, D] on the device
  at::Tensor sample(const PriorSampleOptions& options,
                    bool use_non_ema = false,
                    std::optional<int64_t> max_batch_size = std::nullopt);
  at::Tensor p_sample_loop(const PriorSampleOptions& options,
                           bool use_non_ema = false,
                           std::optional<int64_t> max_batch_size = std::nullopt);

  /// What `encoder` makes of tokens [B, L], in chunks, without gradients, on the device. An encoder
  /// is never averaged: it is not trained.
  TextEmbedding embed_text(TextEncoder& encoder,
                           const at::Tensor& tokens,
                           std::optional<int64_t> max_batch_size = std::nullopt);

  /// A checkpoint with the keys and types of the reference's DiffusionPriorTrainer.save: optimizer,
  /// scheduler, warmup_scheduler, model, version, step, `extras`, ema, ema_model (ema_diffusers for
  /// that kind); then, where they are not as at the start, lora, scaler and skipped_updates. The
  /// version is a string and the warm-up a dictionary, where the reference pickles objects that
  /// torch.load refuses. Tensors are the live ones: write it before the next step.
  Dict state(const std::vector<std::pair<std::string, Value>>& extras = {}) const;

  /// What `save_type: model` saves: version, `extras` (config), and the model with averaged
  /// weights; adapters are merged into their layers, and all is float32 then.
  Dict model_state(const std::vector<std::pair<std::string, Value>>& extras = {}) const;

  /// Takes up a checkpoint of ours or of the reference. Learning rates follow from the step count
  /// and this trainer's config.
  /// @param only_model weights and step count alone; the average begins anew as a copy
  /// @param strict missing or unexpected keys of the model are an error; else a warning
  /// @param file named in errors
  /// @throws DataError naming every missing and unexpected key, or what else does not fit
  void load_state(const Value& checkpoint,
                  bool only_model = false,
                  bool strict = true,
                  const std::string& file = "");

  /// With adapters: begins from the weights of a prior without any. Adapters, optimizer and step
  /// count stay as they are, the average becomes a copy.
  /// @throws DataError naming every missing and unexpected key
  void load_base(const StateDict& weights, const std::string& file);
  /// The averaged adapters (the live ones without averages), and the averaged biases if they are
  /// trained, under their names in the prior; none without adapters.
  std::optional<LoraFile> lora_state() const;

  /// Times forward, backward and optimizer of later steps; null for no longer. It has to outlive
  /// them.
  void set_stage_times(StageTimes* times);

  /// Updates so far. @param settled false: without waiting for a GPU, the last one counted as made
  /// where that is not known yet
  int64_t steps(bool settled = true) const;
  /// Rate of the next update.
  double learning_rate() const;
  /// Multiplies the learning rate; not a part of state().
  void set_learning_rate_factor(double factor);
  /// Decay of the average; none without one.
  std::optional<double> ema_decay() const;
  /// [] norm of the gradients of the last update, before clipping; undefined before the first.
  at::Tensor last_grad_norm() const;
  /// @param settled false: as far as is known without waiting for a GPU
  SkippedUpdates skipped_updates(bool settled = true) const;
  /// What the loss of fp16 is multiplied by; none in other precisions. Waits for the device.
  std::optional<double> loss_scale() const;
  /// Arithmetic of steps and evaluations; samples are drawn in float32.
  const PrecisionChoice& precision() const;
  /// "weights" or "averaged weights" where they hold NaN or infinity. Waits for the device.
  std::optional<std::string> non_finite_part() const;

  bool uses_ema() const;
  DiffusionPrior prior() const;
  /// The averaged network, for reading; null without an average.
  std::shared_ptr<PriorNetworkImpl> ema_net() const;

 private:
  std::unique_ptr<PriorTrainerState> state_;
};

}  // namespace dalle2
