// SPDX-License-Identifier: MIT
#include "trainer/clip_trainer.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "model/clip/clip.h"
#include "model/pass_scopes.h"

namespace dalle2 {

class ClipModel : public torch::nn::Module {
 public:
  explicit ClipModel(std::shared_ptr<ClipImpl> clip) : clip_(std::move(clip)) {
    for (const auto& item : clip_->named_parameters(/*recurse=*/false))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : clip_->named_children()) register_module(item.key(), item.value());
  }
  /// @return the one that was there
  std::shared_ptr<ClipImpl> swap(std::shared_ptr<ClipImpl> other) {
    for (const auto& item : other->named_parameters(/*recurse=*/false))
      parameters_[item.key()] = item.value();
    for (const auto& item : other->named_children()) replace_module(item.key(), item.value());
    return std::exchange(clip_, std::move(other));
  }
  const std::shared_ptr<ClipImpl>& clip() const { return clip_; }

 private:
  std::shared_ptr<ClipImpl> clip_;
};

namespace {

ModelPlan plan_parts(const std::shared_ptr<ClipModel>& model, const ClipTrainConfig& config) {
  const std::shared_ptr<ClipImpl>& clip = model->clip();
  PartPlan part{.prefix = "", .network = clip};
  part.make_network = [shape = clip->config()] { return std::make_shared<ClipImpl>(shape); };
  part.options = part_options(config, 0);
  part.after_step = [scale = clip->logit_scale, most = std::log(config.max_logit_scale)] {
    scale.clamp_(0, most);
  };
  ModelPlan plan = plan_one_part(model, TrainClipConfig::kKind, std::move(part));
  // The statistics of a ResNet's batch norms are those of the whole batch.
  plan.has_lanes = !clip->config().vision_cfg.is_resnet();
  return plan;
}

}  // namespace

ClipTrainer::ClipTrainer(std::shared_ptr<ClipImpl> clip,
                         const ClipTrainConfig& config,
                         const at::Device& device)
    : ClipTrainer(std::make_shared<ClipModel>(std::move(clip)), config, device) {}

ClipTrainer::ClipTrainer(std::shared_ptr<ClipModel> model,
                         const ClipTrainConfig& config,
                         const at::Device& device)
    : Trainer(plan_parts(model, config), config, device), model_(std::move(model)) {}

const ClipImpl& ClipTrainer::clip() const {
  return *model_->clip();
}

void check_picture_size(const at::Tensor& images, int64_t side) {
  if (images.size(2) == side && images.size(3) == side) return;
  throw DataError(
      "/data/preprocessing: expected pictures of {0} x {0} pixels, as /clip/vision_cfg/image_size "
      "says, got {1} x {2}\n"
      "  Let the transforms end in that size: \"Resize\": {{\"size\": {0}}} and \"CenterCrop\": "
      "{{\"size\": {0}}} before \"ToTensor\".",
      side,
      images.size(3),
      images.size(2));
}

void ClipTrainer::check(const std::vector<ClipInputs>& batches) const {
  for (const ClipInputs& batch : batches) {
    if (batch.size() > 0) check_picture_size(batch.images, clip().image_size());
  }
}

JointLoss ClipTrainer::joint_loss(const std::vector<ClipInputs>& batches) const {
  const std::shared_ptr<ClipImpl> clip = model_->clip();
  return joint_loss_of<ClipInputs>(
      batches,
      [clip](const ClipInputs& chunk) {
        return pair_features(clip->image_features(chunk.images), clip->text_features(chunk.tokens));
      },
      [clip](const at::Tensor& pairs) { return contrastive_loss(pairs, clip->logit_scale); });
}

JointLoss ClipTrainer::joint_loss(const std::vector<ClipInputs>& batches,
                                  const DropoutSeed& seed) const {
  JointLoss joint = joint_loss(batches);
  if (const auto& dropout = part(1).dropout) {
    // A chunk that goes through the network twice has the same mask both times.
    joint.features_of = [&batches, &dropout, seed, made = std::move(joint.features_of)](
                            size_t index, const ChunkRange& range) {
      *dropout = seed;
      for (size_t i = 0; i < index; ++i) dropout->first_sample += batches[i].size();
      dropout->first_sample += range.begin;
      return made(index, range);
    };
  }
  return joint;
}

at::Tensor ClipTrainer::step(const std::vector<ClipInputs>& batches, uint64_t dropout_seed) {
  return accumulate_joint(1, joint_loss(batches, DropoutSeed{dropout_seed}));
}

ClipEvaluation ClipTrainer::evaluate(const ClipInputs& batch) const {
  const EvalScope eval(*model_->clip());
  const std::vector<ClipInputs> one = {batch};
  const JointEvaluation evaluation = evaluate_joint(joint_loss(one));
  return {evaluation.loss, evaluation.features};
}

double ClipTrainer::logit_scale() const {
  return std::exp(clip().logit_scale.item<double>());
}

std::shared_ptr<torch::nn::Module> ClipTrainer::swap_network(
    size_t /*index*/, std::shared_ptr<torch::nn::Module> network) const {
  return model_->swap(std::static_pointer_cast<ClipImpl>(std::move(network)));
}

Extras ClipTrainer::companions() const {
  if (merges_.empty()) return {};
  return {{kClipMergesKey, merges_}};
}

void ClipTrainer::take_companions(const Cursor& root) {
  const auto merges = root.value().is_dict() ? root.find(kClipMergesKey) : std::nullopt;
  if (merges) merges_ = merges->as_string();
  has_taken_weights_ = true;
}

bool is_clip_weights_alone(const Cursor& root) {
  return root.value().is_dict() && !root.has("steps");
}

}  // namespace dalle2
