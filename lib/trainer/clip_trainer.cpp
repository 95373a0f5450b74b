// SPDX-License-Identifier: MIT
#include "trainer/clip_trainer.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "model/pass_scopes.h"

namespace dalle2 {

namespace {

ModelPlan plan_parts(const std::shared_ptr<ClipImpl>& clip, const ClipTrainConfig& config) {
  PartPlan part{.prefix = "", .network = clip};
  part.options = part_options(config, 0);
  part.after_step = [scale = clip->logit_scale, most = std::log(config.max_logit_scale)] {
    scale.clamp_(0, most);
  };
  return {.model = clip,
          .model_name = TrainClipConfig::kKind,
          .parts = {std::move(part)},
          // The statistics of a ResNet's batch norms are those of the whole batch.
          .has_lanes = !clip->config().vision_cfg.is_resnet()};
}

}  // namespace

ClipTrainer::ClipTrainer(std::shared_ptr<ClipImpl> clip,
                         const ClipTrainConfig& config,
                         const at::Device& device)
    : Trainer(plan_parts(clip, config), config, device), clip_(std::move(clip)) {}

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

JointLoss ClipTrainer::joint_loss(const std::vector<ClipInputs>& batches,
                                  const std::optional<DropoutSeed>& seed) const {
  JointLoss joint;
  for (const ClipInputs& each : batches) joint.batches.push_back(each.size());
  joint.features_of = [this, &batches, seed](size_t index, const ChunkRange& range) {
    if (const auto& dropout = part(1).dropout; seed && dropout) {
      // A chunk that goes through the network twice has the same mask both times.
      *dropout = *seed;
      for (size_t i = 0; i < index; ++i) dropout->first_sample += batches[i].size();
      dropout->first_sample += range.begin;
    }
    const ClipInputs chunk = chunk_of(batches[index], range);
    return pair_features(clip_->image_features(chunk.images), clip_->text_features(chunk.tokens));
  };
  joint.loss_of = [this](const at::Tensor& pairs) {
    return contrastive_loss(pairs, clip_->logit_scale);
  };
  return joint;
}

at::Tensor ClipTrainer::step(const std::vector<ClipInputs>& batches, uint64_t dropout_seed) {
  return accumulate_joint(part(1), joint_loss(batches, DropoutSeed{dropout_seed}));
}

ClipEvaluation ClipTrainer::evaluate(const ClipInputs& batch) const {
  const EvalScope eval(*clip_);
  const std::vector<ClipInputs> one = {batch};
  const JointEvaluation evaluation =
      evaluate_joint(part(1).settings, joint_loss(one, std::nullopt));
  return {evaluation.loss, evaluation.features};
}

double ClipTrainer::logit_scale() const {
  return std::exp(clip().logit_scale.item<double>());
}

Extras ClipTrainer::companions() const {
  if (merges_.empty()) return {};
  return {{kClipMergesKey, merges_}};
}

void ClipTrainer::take_companions(const Cursor& root) {
  if (const auto merges = root.find(kClipMergesKey)) merges_ = merges->as_string();
  has_taken_weights_ = true;
}

}  // namespace dalle2
