// SPDX-License-Identifier: MIT
// One training step of a decoder and everything it keeps: weights, optimizers, averages, step
// counts. It knows nothing of epochs, files or loggers.
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
#include "config/train_config.h"
#include "diffusion/decoder.h"
#include "optim/precision.h"
#include "trainer/stage_times.h"
#include "trainer/update_outcome.h"

namespace dalle2 {

struct DecoderTrainerState;

/// A loss and the low-resolution images the stage was conditioned on.
struct StepResult {
  at::Tensor loss;                ///< [] float32 on the device, detached: reading it synchronises
  at::Tensor lowres_cond_images;  ///< [B, C, H, W]; undefined for the first unet
};

/// Usage:
///   DecoderTrainer trainer(decoder, config.train, device);
///   const at::Generator random = make_generator({seed, "train", epoch, i}, device);
///   const at::Tensor loss = trainer.step(inputs, 1, random);
///   trainer.update(1);
/// Unet numbers count from 1, as users see them.
class DecoderTrainer {
 public:
  /// Moves the decoder to `device`, takes the unets out that `unet_training_mask` excludes, gives
  /// the others the adapters of `lora`, and lays what is trained out in flat buffers.
  /// @throws ConfigError for a learning rate above 1e-2, an array of another length than there are
  ///         unets, a warm-up of no steps
  DecoderTrainer(Decoder decoder, const DecoderTrainConfig& config, const at::Device& device);
  ~DecoderTrainer();
  DecoderTrainer(const DecoderTrainer&) = delete;
  DecoderTrainer& operator=(const DecoderTrainer&) = delete;

  /// Forward and backward of one batch, in chunks of max_batch_size (default: the config's; none:
  /// the whole batch) weighted by their size: loss and gradients are those of the whole batch, and
  /// what is random is drawn for the whole batch, so the chunk size changes nothing. Gradients add
  /// up over calls until update().
  /// @param weight of this call's loss: the share of its batch where several make one update
  /// @return the loss times `weight`
  /// @throws ConfigError for a unet that is not there or not trained; DataError for an empty batch
  at::Tensor step(const DecoderInputs& inputs,
                  int64_t unet_number,
                  at::Generator generator,
                  std::optional<int64_t> max_batch_size = std::nullopt,
                  double weight = 1.0);

  /// The same with everything random given, for the whole batch.
  at::Tensor step(const DecoderInputs& inputs,
                  int64_t unet_number,
                  const DecoderStepNoise& draws,
                  std::optional<int64_t> max_batch_size = std::nullopt,
                  double weight = 1.0);

  /// The loss without gradients, the decoder in eval mode meanwhile.
  StepResult evaluate(const DecoderInputs& inputs,
                      int64_t unet_number,
                      at::Generator generator,
                      std::optional<int64_t> max_batch_size = std::nullopt);

  /// Clips the gradients, steps the optimizer at the scheduled rate, averages, counts the step.
  /// Only this unet changes. If the loss or the gradient is not finite nothing changes, but for the
  /// loss scale of fp16, and the update counts as skipped. Waits for nothing but, on a GPU, the
  /// update before it: whether one was made is settled then, or when something is asked that
  /// depends on it (steps, rate, average, state).
  void update(int64_t unet_number);

  /// Samples with the averaged unets (the live ones with `use_non_ema`, or without averages), in
  /// chunks of max_batch_size images. Afterwards every weight and mode is as before, also if it
  /// throws.
  /// @return [B, C, H, W] on the device
  at::Tensor sample(const DecoderSampleOptions& options,
                    bool use_non_ema = false,
                    std::optional<int64_t> max_batch_size = std::nullopt);

  /// A checkpoint with the keys, order and types of the reference's DecoderTrainer.save: model,
  /// version, steps, `extras`, optim{i}, sched{i}, ema (ema_diffusers for that kind); then, where
  /// they are not as at the start, scaler{i} and skipped_updates. Tensors are the live ones: write
  /// it before the next step.
  Dict state(const std::vector<std::pair<std::string, Value>>& extras = {}) const;

  /// What `save_type: model` saves: version, `extras` (config), and the model with averaged unets;
  /// adapters are merged into their layers, and all is float32 then.
  Dict model_state(const std::vector<std::pair<std::string, Value>>& extras = {}) const;

  /// The averages of /train/post_hoc_ema for combine_post_hoc(): version, `extras` (config),
  /// post_hoc_ema (one entry a unet, None for one without), and as `model` all that has no average.
  Dict post_hoc_state(const std::vector<std::pair<std::string, Value>>& extras = {}) const;

  /// Takes up a checkpoint of ours or of the reference. Learning rates follow from the step counts
  /// and this trainer's config; a checkpoint made with other settings is mentioned in the log.
  /// @param only_model weights and step counts alone; averages begin anew as copies of the weights
  /// @param strict missing or unexpected keys of the model are an error; else a warning
  /// @param file named in errors
  /// @throws DataError naming every missing and unexpected key, or what else does not fit
  void load_state(const Value& checkpoint,
                  bool only_model = false,
                  bool strict = true,
                  const std::string& file = "");

  /// With adapters: begins from the weights of a decoder without any. Adapters, optimizers, step
  /// counts stay as they are, averages become copies. Entries of stages that are not trained here
  /// are passed over.
  /// @throws DataError naming every missing and unexpected key
  void load_base(const StateDict& weights, const std::string& file);

  /// The averaged adapters (the live ones without averages), and the averaged biases if they are
  /// trained, under their names in the decoder; none without adapters.
  std::optional<LoraFile> lora_state() const;
  bool uses_lora() const;

  /// Times forward, backward and optimizer of later steps; null for no longer. It has to outlive
  /// them.
  void set_stage_times(StageTimes* times);

  int64_t num_unets() const;
  /// False for a stage that unet_training_mask took out.
  bool is_trained(int64_t unet_number) const;
  /// Updates of a unet so far. @param settled false: without waiting for a GPU, the last one
  /// counted as made where that is not known yet
  int64_t steps(int64_t unet_number, bool settled = true) const;
  /// Rate of the unet's next update.
  double learning_rate(int64_t unet_number) const;
  /// Decay of the unet's average; none without averages.
  std::optional<double> ema_decay(int64_t unet_number) const;
  /// [] norm of the gradients of the unet's last update, before clipping; undefined before the
  /// first.
  at::Tensor last_grad_norm(int64_t unet_number) const;

  /// Updates of a unet that were skipped. @param settled false: as far as is known without waiting
  /// for a GPU, which may be one update behind
  SkippedUpdates skipped_updates(int64_t unet_number, bool settled = true) const;
  void set_skipped_updates(int64_t unet_number, const SkippedUpdates& skipped);
  /// What the loss of fp16 is multiplied by; none in other precisions. Waits for the device.
  std::optional<double> loss_scale(int64_t unet_number) const;
  /// Arithmetic of steps and evaluations; samples are drawn in float32.
  const PrecisionChoice& precision() const;
  /// Multiplies the learning rates of all unets; not a part of state().
  double learning_rate_factor() const;
  void set_learning_rate_factor(double factor);
  /// The first part of the state that holds NaN or infinity, e.g. "weights of unet 0"; none if all
  /// is sound. Waits for the device.
  std::optional<std::string> non_finite_part() const;

  bool uses_ema() const;
  Decoder decoder() const;
  /// The averaged network, for reading; null without averages or for a stage that is not trained.
  std::shared_ptr<UnetImpl> ema_unet(int64_t unet_number) const;

 private:
  friend struct DecoderTrainerProbe;  // of the tests

  /// @throws ConfigError
  void check_trained(int64_t unet_number) const;

  std::unique_ptr<DecoderTrainerState> state_;
};

}  // namespace dalle2
