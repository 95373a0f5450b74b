// SPDX-License-Identifier: MIT
#include "trainer/clip_trainer.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "diffusion/decoder/pass_scopes.h"
#include "model/clip/contrastive_loss.h"

namespace dalle2 {

class ClipModel : public torch::nn::Module {
 public:
  explicit ClipModel(std::shared_ptr<ClipImpl> clip) : clip_(std::move(clip)) {
    for (const auto& item : clip_->named_parameters(/*recurse=*/false))
      register_parameter(item.key(), item.value(), item.value().requires_grad());
    for (const auto& item : clip_->named_children()) register_module(item.key(), item.value());
  }
  std::shared_ptr<ClipImpl> swap(std::shared_ptr<ClipImpl> other) {
    for (const auto& item : other->named_parameters(/*recurse=*/false))
      parameters_[item.key()] = item.value();
    for (const auto& item : other->named_children()) replace_module(item.key(), item.value());
    return std::exchange(clip_, std::move(other));
  }
  ClipImpl& clip() const { return *clip_; }

 private:
  std::shared_ptr<ClipImpl> clip_;
};

namespace {

ModelPlan plan_parts(const std::shared_ptr<ClipModel>& model, const ClipTrainConfig& config) {
  PartPlan part{.prefix = "", .network = model->clip().ptr()};
  part.make_network = [shape = model->clip().config()] {
    return std::make_shared<ClipImpl>(shape);
  };
  part.options = part_options(config, 0);
  part.after_step = [scale = model->clip().logit_scale, most = std::log(config.max_logit_scale)] {
    scale.clamp_(0, most);
  };
  return plan_one_part(model, TrainClipConfig::kKind, std::move(part));
}

}  // namespace

ClipTrainer::ClipTrainer(std::shared_ptr<ClipImpl> clip,
                         const ClipTrainConfig& config,
                         const at::Device& device)
    : ClipTrainer(std::make_shared<ClipModel>(std::move(clip)), config, device) {}

ClipTrainer::ClipTrainer(std::shared_ptr<ClipModel> model,
                         const ClipTrainConfig& config,
                         const at::Device& device)
    : Trainer(plan_parts(model, config), config, device), model_(std::move(model)) {
  model_->clip().to(device);  // what no file holds, too
}

const ClipImpl& ClipTrainer::clip() const {
  return model_->clip();
}

void ClipTrainer::check(const std::vector<ClipInputs>& batches) const {
  const int64_t side = clip().image_size();
  for (const ClipInputs& batch : batches) {
    if (batch.size() == 0) continue;
    const at::Tensor& images = batch.images;
    if (images.size(2) == side && images.size(3) == side) continue;
    throw DataError(
        "expected pictures of {} x {} pixels, as /clip/vision_cfg/image_size says, got {} x {}\n"
        "  Let /data/preprocessing end in that size: add \"Resize\": {{\"size\": {}}} and "
        "\"CenterCrop\": {{\"size\": {}}} before ToTensor.",
        side,
        side,
        images.size(3),
        images.size(2),
        side,
        side);
  }
}

JointLoss ClipTrainer::joint_loss(const std::vector<ClipInputs>& batches) const {
  ClipImpl& clip = model_->clip();
  return {
      .features_of =
          [&clip, &batches](size_t batch, const ChunkRange& range) {
            const ClipInputs chunk = chunk_of(batches[batch], range);
            return pair_features(clip.image_features(chunk.images),
                                 clip.text_features(chunk.tokens));
          },
      .loss_of =
          [&clip](const at::Tensor& pairs) { return contrastive_loss(pairs, clip.logit_scale); }};
}

at::Tensor ClipTrainer::step(const std::vector<ClipInputs>& batches) {
  std::vector<int64_t> sizes;
  for (const ClipInputs& batch : batches) sizes.push_back(batch.size());
  return accumulate_joint(1, sizes, joint_loss(batches));
}

ClipEvaluation ClipTrainer::evaluate(const ClipInputs& batch) const {
  const EvalScope eval(*model_);
  const std::vector<ClipInputs> one = {batch};
  JointLoss joint = joint_loss(one);
  std::vector<at::Tensor> made;
  joint.features_of = [&, features_of = joint.features_of](size_t index, const ChunkRange& range) {
    made.push_back(features_of(index, range));
    return made.back();
  };
  ClipEvaluation found;
  found.loss = evaluate_joint(1, {batch.size()}, joint);
  if (!made.empty()) found.pairs = at::cat(made);
  return found;
}

at::Tensor ClipTrainer::text_features(const at::Tensor& tokens) const {
  const torch::NoGradGuard no_grad;
  const EvalScope eval(*model_);
  return torch::nn::functional::normalize(
      model_->clip().text_features(tokens.to(device())).to(at::kFloat),
      torch::nn::functional::NormalizeFuncOptions().dim(-1));
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
  return {{kClipMerges, merges_}};
}

void ClipTrainer::take_companions(const Cursor& root) {
  const auto merges = root.value().is_dict() ? root.find(kClipMerges) : std::nullopt;
  if (merges) merges_ = merges->as_string();
}

bool is_clip_weights_alone(const Cursor& root) {
  return root.value().is_dict() && !root.has("steps");
}

void ClipTrainer::list_state(TrainState& state) const {
  state.model("model");
  state.version("version");
  state.steps("steps");
  state.extras();
  state.optimizer("optimizer", 0);
  state.schedule("scheduler", 0);
  state.averages({.many_parts = false, .model_key = "ema_model"});
  state.lora("lora");
  state.post_hoc_averages("post_hoc_ema");
  state.scaler("scaler", 0);
  state.skipped("skipped_updates", /*flat=*/true);
}

}  // namespace dalle2
