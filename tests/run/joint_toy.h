// SPDX-License-Identifier: MIT
// The smallest kind with a joint loss: two linear towers, of a picture's mean colour and of its
// embedding, are told to agree (Radford et al. 2021, figure 3). It reads shards, and all that is not in
// these two files is what every kind shares.
#pragma once

#include <torch/torch.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/kinds.h"
#include "config/shared/root_config.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/train_options.h"
#include "model/layers.h"
#include "run/kinds.h"
#include "run/one_part_model.h"
#include "run/shards/shard_run.h"
#include "trainer/trainer.h"

namespace dalle2::test {

struct JointToyConfig {
  int64_t width = 4;
  double most_scale = 20;
  void fields(auto& f) {
    D2_FIELD(width, "Numbers of a feature.", within(1, 64));
    D2_FIELD(most_scale, "The scale of the cosines is clamped to it.", above(0));
  }
};

struct JointToyTrainConfig : OptimizerConfig<Single>, SharedTrainConfig, ShardLoopConfig {
  JointToyTrainConfig() {
    lr = 5e-2;
    device = "cpu";
    ema_update_after_step = 0;
    ema_update_every = 1;
  }
  void fields(auto& f) {
    OptimizerConfig::fields(f);
    SharedTrainConfig::fields(f);
    ShardLoopConfig::fields(f);
  }
};

struct TrainJointToyConfig : RootConfig {
  static constexpr const char* kDoc = "A file that trains the joint toy.";
  static constexpr const char* kKind = "joint_toy";
  static constexpr auto& kPlaceholders = kShardPlaceholders;

  JointToyConfig joint_toy;
  ShardDataConfig data;
  JointToyTrainConfig train;
  void fields(auto& f) {
    D2_REQUIRED(joint_toy, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_FIELD(train, "The optimisation.");
    RootConfig::fields(f);
  }
};

struct NoPlan {};
using LoadedJointToy = Loaded<TrainJointToyConfig, NoPlan>;

struct JointToyInputs {
  at::Tensor images;  // [B, 3, H, W]
  at::Tensor embeds;  // [B, 3]
  int64_t size() const { return images.defined() ? images.size(0) : 0; }
  void tensors(const auto& f) {
    f(images);
    f(embeds);
  }
};

struct JointToyNetwork : torch::nn::Module {
  explicit JointToyNetwork(int64_t width);
  /// [B, 2, width], each row of length 1
  at::Tensor features(const JointToyInputs& inputs);
  /// [] of [N, 2, width]
  at::Tensor loss(const at::Tensor& features);

  std::shared_ptr<LinearLayerImpl> picture, embed;
  at::Tensor scale;  // []
};

using JointToyModel = OnePartModel<JointToyNetwork>;
std::shared_ptr<JointToyModel> make_joint_toy(const TrainJointToyConfig& config);

class JointToyTrainer : public Trainer {
 public:
  JointToyTrainer(std::shared_ptr<JointToyModel> model, const TrainJointToyConfig& config);
  /// Gradients of an update from its batches on this rank, which may be empty. @return [] the loss
  at::Tensor step(const std::vector<JointToyInputs>& batches);
  at::Tensor evaluate(const JointToyInputs& batch) const;
  const JointToyNetwork& network() const { return *model_->network; }

 private:
  std::shared_ptr<torch::nn::Module> swap_network(
      size_t /*index*/, std::shared_ptr<torch::nn::Module> network) const override {
    return model_->swap(network);
  }
  JointLoss loss_of(const std::vector<JointToyInputs>& batches) const;

  std::shared_ptr<JointToyModel> model_;
};

class JointToyRun : public ShardRun {
 public:
  JointToyRun(const LoadedJointToy& loaded, const RunProcess& process);
  const JointToyTrainer& trainer() const { return trainer_; }

 private:
  void introduce() const override {}
  std::optional<int64_t> train_group(const std::vector<Batch>& group) override;
  void add_validation_losses(const Batch& batch,
                             int64_t place,
                             std::vector<LossSum>& sums) override;
  void end_epoch() override { save_epoch(); }

  JointToyTrainer& trainer_;
};

/// Its row in the table of kinds, once.
void register_joint_toy();

}  // namespace dalle2::test
