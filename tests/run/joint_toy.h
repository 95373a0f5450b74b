// SPDX-License-Identifier: MIT
// The smallest kind with a joint loss: two linear towers, of a picture's mean colour and of its
// embedding, learn to agree (Radford et al. 2021, figure 3). It reads shards; whatever is not in this
// file is shared by all kinds.
#pragma once

#include "config/kinds.h"
#include "config/reading/parse_config.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "run/kinds.h"
#include "run/shards/shard_run.h"
#include "run/tiny_decoder.h"
#include "run/toy_support.h"
#include "trainer/joint_loss.h"

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
  static FormatFields placeholders() { return shard_placeholders(); }

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

using LoadedJointToy = Loaded<TrainJointToyConfig>;

inline LoadedJointToy parse_joint_toy(const std::string& json,
                                      const std::string& origin,
                                      const ReadOptions& options) {
  return parse_config<LoadedJointToy>(
      json, origin, options, [](const Json&, LoadedJointToy&, Faults&) {});
}

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
  explicit JointToyNetwork(int64_t width)
      : picture(register_module("picture", make_linear(3, width))),
        embed(register_module("embed", make_linear(3, width))),
        scale(register_parameter("scale", at::full({}, 10.0))) {}

  /// [B, 2, width], each row of length 1
  at::Tensor features(const JointToyInputs& inputs) {
    namespace F = torch::nn::functional;
    const at::Tensor both =
        at::stack({picture->forward(inputs.images.mean({2, 3})), embed->forward(inputs.embeds)}, 1);
    return F::normalize(both, F::NormalizeFuncOptions().dim(2));
  }

  /// [] of [N, 2, width]
  at::Tensor loss(const at::Tensor& features) {
    const at::Tensor logits = scale * features.select(1, 0).matmul(features.select(1, 1).t());
    const at::Tensor own = at::arange(features.size(0), at::kLong);
    return (at::cross_entropy_loss(logits, own) + at::cross_entropy_loss(logits.t(), own)) / 2;
  }

  std::shared_ptr<LinearLayerImpl> picture, embed;
  at::Tensor scale;  // []
};

using JointToyModel = OnePartModel<JointToyNetwork>;

inline std::shared_ptr<JointToyModel> make_joint_toy(const TrainJointToyConfig& config) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  return std::make_shared<JointToyModel>("joint",
                                         std::make_shared<JointToyNetwork>(config.joint_toy.width));
}

class JointToyTrainer : public Trainer {
 public:
  JointToyTrainer(std::shared_ptr<JointToyModel> model, const TrainJointToyConfig& config)
      : Trainer(plan_of(model, config), config.train, at::kCPU), model_(std::move(model)) {}

  /// Gradients of an update from its batches on this rank, which may be empty. @return [] the loss
  at::Tensor step(const std::vector<JointToyInputs>& batches) {
    return accumulate_joint(part(1), loss_of(batches));
  }
  at::Tensor evaluate(const JointToyInputs& batch) const {
    const std::vector<JointToyInputs> one = {batch};
    return evaluate_joint(part(1).settings, loss_of(one)).loss;
  }
  const JointToyNetwork& network() const { return *model_->network; }

 private:
  static ModelPlan plan_of(const std::shared_ptr<JointToyModel>& model,
                           const TrainJointToyConfig& config) {
    PartPlan part{.prefix = "joint.", .network = model->network};
    part.options = part_options(config.train, 0);
    part.after_step = [scale = model->network->scale, most = config.joint_toy.most_scale] {
      scale.clamp_(0, most);
    };
    return {.model = model, .model_name = TrainJointToyConfig::kKind, .parts = {std::move(part)}};
  }
  JointLoss loss_of(const std::vector<JointToyInputs>& batches) const {
    JointLoss loss;
    for (const JointToyInputs& each : batches) loss.batches.push_back(each.size());
    loss.features_of = [this, &batches](size_t batch, const ChunkRange& range) {
      return model_->network->features(chunk_of(batches[batch], range));
    };
    loss.loss_of = [this](const at::Tensor& features) { return model_->network->loss(features); };
    return loss;
  }

  std::shared_ptr<JointToyModel> model_;
};

class JointToyRun : public ShardRun {
 public:
  JointToyRun(const LoadedJointToy& loaded, const RunProcess& process)
      : ShardRun(run_plan(loaded, process, {{}}, "odd pictures"),
                 [&](const at::Device&) {
                   return std::make_unique<JointToyTrainer>(make_joint_toy(loaded.config),
                                                            loaded.config);
                 },
                 loaded.config.train,
                 loaded.config.data,
                 {.need_image_embeds = true, .image_embed_dim = 3}),
        trainer_(trainer_as<JointToyTrainer>()) {}

 private:
  std::optional<int64_t> accumulate() override {
    std::vector<JointToyInputs> batches;
    int64_t samples = 0;
    for (const Batch& batch : group_) {
      batches.push_back({batch.images, batch.image_embeds});
      samples += batch.samples_of_step;
    }
    trainer_.step(batches);
    return samples;
  }
  void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) override {
    sums[0].add(trainer_.evaluate({batch.images, batch.image_embeds}));
  }

  JointToyTrainer& trainer_;
};

inline std::unique_ptr<TrainingRun> make_run(const LoadedJointToy& loaded,
                                             const RunProcess& process) {
  return std::make_unique<JointToyRun>(loaded, process);
}

inline void dry_run(const LoadedJointToy& /*loaded*/,
                    int64_t /*processes*/,
                    const StartOptions& /*start*/) {}

/// @return the path of its file
inline std::string write_joint_toy(const TempDir& folder, const std::string& out, int64_t epochs) {
  return write_tiny_run(
      folder.path(),
      out,
      {{"joint_toy", {{"width", 4}}},
       {"train", {{"epochs", epochs}, {"log_every_n_updates", 1}, {"grad_accum_every", 2}}}});
}

/// Its row in the table of kinds, once.
inline void register_joint_toy() {
  static const bool once = [] {
    config_kinds().push_back(kind_row<TrainJointToyConfig, parse_joint_toy>("a joint toy"));
    run_kinds().push_back({.key = TrainJointToyConfig::kKind,
                           .tensor_prefixes = {"joint."},
                           .load = load_run<parse_joint_toy>});
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace dalle2::test
