// SPDX-License-Identifier: MIT
// What the trainers of all kinds share: parts that are optimized, updates that may be skipped,
// averages, and a state that is saved to and loaded from a checkpoint. A kind adds its losses, its
// sampling, and the list of its state.
#pragma once

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/lora/lora_file.h"
#include "checkpoint/state_dict.h"
#include "config/shared/train_options.h"
#include "model/pass_scopes.h"
#include "optim/precision.h"
#include "trainer/state/train_state.h"
#include "trainer/step_times.h"
#include "trainer/trained_part.h"

namespace dalle2 {

/// Whether a file has weights, but no place of a run: a model file, a bare state dict, or a file of another program,
/// such as muse's own trainer. A run can begin with its weights, not resume from it. The `step` of a bare state dict is
/// the counter of an average (`vae.N.ema.pt`).
inline bool is_weights_alone(const Cursor& root) {
  return root.value().is_dict() && !root.has("steps") && !(root.has("step") && root.has("model"));
}

/// The averages of all parts are available while it lives (WeightAverage::Held): those that are spread
/// over the ranks are put together. All ranks have to make one, and later use of the averages needs no
/// other rank.
using HeldAverages = std::deque<WeightAverage::Held>;

/// The model in eval mode, with the averages of all parts that have one, for as long as it lives.
/// Afterwards every tensor is what it was and every module in the mode it was in.
class AveragesInPlace {
 public:
  /// @param averaged false: eval mode alone
  AveragesInPlace(torch::nn::Module& model, const TrainedParts& parts, bool averaged);

 private:
  EvalScope eval_;
  std::deque<WeightAverage::InPlace> averages_;
};

/// Part numbers count from 1, as users see them. Queries with `settled` wait for a GPU until it is
/// known whether the last update was made; without it that update counts as made.
class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Clips the gradients, steps the optimizer at the scheduled rate, averages, counts the step.
  /// Only this part changes. If the loss or the gradient is not finite nothing changes, except the
  /// loss scale of fp16, and the update counts as skipped. Waits for nothing except, on a GPU, the
  /// previous update: whether that one was made is settled now, or earlier if something is asked
  /// for that depends on it (steps, rate, average, state).
  /// @throws ConfigError for a part that is not there or not trained
  void update(int64_t part = 1);

  /// Trains together with the other ranks: TrainedPart::connect() for all parts, and the weights of
  /// those that are not trained. @param group has to outlive the trainer
  /// @param sharding spreads moments and averages over the ranks. Then these are to be called
  /// by all ranks: state(), model_state(), post_hoc_state(), lora_state(), non_finite_part() and
  /// hold_averages(), without which no average can be used. What the states give is whole on rank 0.
  void connect(ProcessGroup& group,
               const ExchangeOptions& options,
               const ShardOptions& sharding = {});
  /// Whether moments and averages are spread over ranks.
  bool is_sharded() const;
  /// For a validation or a sampling: see HeldAverages. No update may be made while it lives.
  HeldAverages hold_averages() const;
  /// In the place of the last batch of an update, of which this rank has no samples, while others have
  /// some: takes part in what they do together. @param parts that they pass through, in their order
  void finish_without_samples(const std::vector<int64_t>& parts);
  /// [] of the part's last update: the sum of the weighted losses of all passes, over all ranks.
  at::Tensor last_loss(int64_t number = 1) const { return part(number).last_loss; }
  /// A number that differs if a weight or a buffer does. Waits for the device.
  int64_t checksum() const;

  int64_t num_parts() const { return std::ssize(contents_.parts); }
  /// False for a part that the config takes out.
  bool is_trained(int64_t part) const;
  std::vector<int64_t> trained_parts() const;
  /// "unet 1"; empty where the kind has one part.
  const std::string& part_name(int64_t part) const {
    return contents_.plan.parts.at(static_cast<size_t>(part - 1)).name;
  }

  /// Updates of a part so far.
  int64_t steps(int64_t part = 1, bool settled = true) const;
  /// Updates of the first trained part: what logs count.
  int64_t first_steps(bool settled = true) const { return steps(trained_parts().front(), settled); }
  /// Rate of the part's next update.
  double learning_rate(int64_t number = 1) const { return part(number).schedule.at(steps(number)); }
  /// Decay of the part's average; none without averages.
  std::optional<double> ema_decay(int64_t part = 1) const;
  /// [] norm of the gradients of the part's last update, before clipping; undefined before the
  /// first.
  at::Tensor last_grad_norm(int64_t number = 1) const { return part(number).grad_norm; }
  SkippedUpdates skipped_updates(int64_t part = 1, bool settled = true) const;
  void set_skipped_updates(int64_t part, const SkippedUpdates& skipped);
  /// The loss scale of fp16; none in other precisions. Waits for the device.
  std::optional<double> loss_scale(int64_t part = 1) const;
  /// Arithmetic of steps and evaluations; samples are drawn in float32.
  const PrecisionChoice& precision() const { return precision_; }
  /// Multiplies the learning rates of all parts; not in state().
  double learning_rate_factor() const { return learning_rate_factor_; }
  void set_learning_rate_factor(double factor);
  /// The first part of the state that holds NaN or infinity, e.g. "weights of unet 1"; none if all
  /// values are finite. Waits for the device.
  std::optional<std::string> non_finite_part() const;
  bool uses_ema() const { return contents_.averages.has_value(); }
  bool uses_lora() const { return contents_.lora.has_value(); }
  const torch::nn::Module& model() const { return *contents_.plan.model; }
  const std::string& model_name() const { return contents_.plan.model_name; }

  /// Times forward, backward and optimizer of later steps into `times`, which has to outlive them;
  /// null stops that.
  void set_step_times(StepTimes* times);

  /// A checkpoint with the keys, order and types of the reference's trainer of this kind, `extras`
  /// among them; then, with fp16, the loss scales, and the skipped updates if there were any.
  /// Tensors are the live ones: write it before the next step.
  Dict state(const Extras& extras = {}) const;

  /// What `save_type: model` saves: version, `extras` (config), and the model with averaged
  /// weights; with adapters they are merged into their layers, and everything is float32.
  Dict model_state(const Extras& extras = {}) const;

  /// The averages of /train/post_hoc_ema for combine_post_hoc(): version, `extras` (config),
  /// post_hoc_ema (one entry a part, None for one without), and as `model` everything without an
  /// average.
  Dict post_hoc_state(const Extras& extras = {}) const;

  /// Loads a checkpoint of ours or of the reference's. Learning rates follow from the step counts
  /// and this trainer's config; a checkpoint made with other settings is mentioned in the log.
  /// @param only_model weights and step counts alone; averages start over as copies of the weights
  /// @param strict missing or unexpected keys of the model are an error; else a warning
  /// @param file named in errors
  /// @throws DataError naming every missing and unexpected key, or what else does not fit; the
  /// state is then undefined until another one is loaded
  void load_state(const Value& checkpoint,
                  bool only_model = false,
                  bool strict = true,
                  const std::string& file = "");

  /// What this start has chosen and a resumed run needs for the same bits: entries of `dalle2_train` in a checkpoint.
  virtual void add_choices(Dict& /*own*/) const {}
  /// Takes them instead of this start's. @param own `dalle2_train` @throws DataError for one that does not fit
  virtual void take_choices(const Cursor& /*own*/) {}

  /// Takes from a file what its weights need besides their config: companions().
  virtual void take_companions(const Cursor& root);
  /// Of which CLIP the embeddings are that a decoder or prior is trained with: clip_sha256(), which its
  /// files hold; empty if it is not known, as on ranks that write no file. A run that does not know it
  /// keeps what a file says.
  void set_clip_identity(std::string sha256) { clip_identity_ = std::move(sha256); }
  /// Begins from the weights of a model, with adapters from those of one without any. Adapters,
  /// optimizers and step counts stay as they are, averages become copies. Entries of parts that are
  /// not trained here are skipped.
  /// @throws DataError naming every missing and unexpected key
  void load_base(const StateDict& weights, const std::string& file);

  /// Takes the weights of parts that are not trained here, of a whole model's; they go into this
  /// trainer's states as they are. Entries of other parts are skipped, and so are parts without
  /// entries. @return the names of the parts that were taken
  /// @throws DataError for weights that do not fit such a part, or are not finite
  std::vector<std::string> carry(const StateDict& weights, const std::string& file);
  /// Whether a tensor of the model is of a part that is trained, or of one that is not.
  bool has(const std::string& tensor_name, bool trained) const {
    return contents_.has(tensor_name, trained);
  }

  /// The averaged adapters (the live ones without averages), and the averaged biases if they are
  /// trained, under their names in the model; none without adapters.
  std::optional<LoraFile> lora_state() const;

 protected:
  /// Gives the networks the adapters of `config`, moves the model to `device`, and lays what is
  /// trained out in flat buffers.
  Trainer(ModelPlan plan, const SharedTrainConfig& config, const at::Device& device);

  /// What a checkpoint of this kind holds, in the reference's order and under its keys. Of a kind
  /// with one part that has no reference, this list will do.
  virtual void list_state(TrainState& state) const;
  /// What the weights need besides their config, e.g. a vocabulary: entries of each checkpoint and
  /// model file.
  virtual Extras companions() const;
  /// @throws ConfigError for a part that is not there or not trained
  TrainedPart& part(int64_t number) const;
  const at::Device& device() const { return device_; }
  /// The first half of update(): settles the update before, then steps the optimizer.
  void optimize(int64_t part);
  /// The second: the averages take in what optimize() has made.
  void average(int64_t part);
  /// What `draw` makes of each chunk of a group of tensors, on the device, with averages in the place
  /// of the weights (unless `use_non_ema`) and without gradients. @param batch above 0
  template <TensorGroup Options, class Draw>
  at::Tensor sample_in_chunks(const Options& options,
                              int64_t batch,
                              bool use_non_ema,
                              std::optional<int64_t> max_batch_size,
                              const Draw& draw) const {
    const AveragesInPlace averages = averages_in_place(!use_non_ema);
    return draw_in_chunks(*contents_.plan.model, options, batch, max_batch_size, device(), draw);
  }
  /// The model in eval mode for as long as it lives, with averages instead of the weights if they are `wanted`.
  AveragesInPlace averages_in_place(bool wanted = true) const;
  void settle_all() const {
    for (size_t i = 0; i < contents_.parts.size(); ++i) settle(i);
  }

 private:
  Extras with_companions(const Extras& extras) const;
  friend struct TrainerProbe;  // of the tests

  void settle(size_t index) const;
  /// After something was loaded: tensors may have moved.
  void forget_graphs();
  void add_part(const PartPlan& plan,
                const SharedTrainConfig& config,
                std::shared_ptr<DropoutSeed> dropout);

  /// Settling only counts what the device has done already. It does not change what the trainer is, so
  /// asking may do it.
  mutable TrainerContents contents_;
  at::Device device_;
  PrecisionChoice precision_;
  double learning_rate_factor_ = 1.0;
  /// Settles after each update, not before the next one: on the CPU there is nothing to wait for.
  bool settles_at_once_ = true;
  bool averages_change_weights_ = false;
  std::string clip_identity_, clip_identity_of_file_;
  bool told_of_other_clip_ = false;
};

/// Options of a part from the `train` section: entry `index` of what may differ between parts.
template <template <class> class Per>
PartOptions part_options(const OptimizerConfig<Per>& config, size_t index);

/// Gives every network the adapters of /train/lora, freezes all else in it, and holds that as
/// /train/frozen_dtype says. Null networks are skipped. Does nothing with a rank of 0.
/// @return for each network, what decides the dropout of its adapters; null where there are none
/// @throws ConfigError for a target that no network has, or a network without any of them
std::vector<std::shared_ptr<DropoutSeed>> add_adapters(
    const std::vector<std::shared_ptr<torch::nn::Module>>& networks, const AdaptersConfig& config);

}  // namespace dalle2
