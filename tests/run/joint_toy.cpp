// SPDX-License-Identifier: MIT
#include "run/joint_toy.h"

#include <cstdio>

#include "config/reading/parse_config.h"

namespace dalle2::test {
namespace {

ModelPlan plan_of(const std::shared_ptr<JointToyModel>& model, const TrainJointToyConfig& config) {
  PartPlan part{.prefix = "joint.", .network = model->network};
  part.make_network = [width = config.joint_toy.width] {
    return std::make_shared<JointToyNetwork>(width);
  };
  part.options = part_options(config.train, 0);
  part.after_step = [scale = model->network->scale, most = config.joint_toy.most_scale] {
    scale.clamp_(0, most);
  };
  return plan_one_part(model, TrainJointToyConfig::kKind, std::move(part));
}

JointToyInputs to_inputs(const Batch& batch) {
  return {batch.images, batch.image_embeds};
}

LoaderOptions needs() {
  LoaderOptions needs;
  needs.need_image_embeds = true;
  needs.image_embed_dim = 3;
  return needs;
}

}  // namespace

LoadedJointToy parse_joint_toy(const std::string& json,
                               const std::string& origin,
                               const ReadOptions& options) {
  return parse_config<LoadedJointToy>(
      json, origin, options, [](const Json&, LoadedJointToy&, Faults&) {});
}

JointToyNetwork::JointToyNetwork(int64_t width)
    : picture(register_module("picture", make_linear(3, width))),
      embed(register_module("embed", make_linear(3, width))),
      scale(register_parameter("scale", at::full({}, 10.0))) {}

at::Tensor JointToyNetwork::features(const JointToyInputs& inputs) {
  const auto unit = [](const at::Tensor& rows) {
    return torch::nn::functional::normalize(rows, torch::nn::functional::NormalizeFuncOptions());
  };
  return at::stack(
      {unit(picture->forward(inputs.images.mean({2, 3}))), unit(embed->forward(inputs.embeds))}, 1);
}

at::Tensor JointToyNetwork::loss(const at::Tensor& features) {
  const at::Tensor logits = scale * features.select(1, 0).matmul(features.select(1, 1).t());
  const at::Tensor own = at::arange(features.size(0), at::kLong);
  return (at::cross_entropy_loss(logits, own) + at::cross_entropy_loss(logits.t(), own)) / 2;
}

std::shared_ptr<JointToyModel> make_joint_toy(const TrainJointToyConfig& config) {
  torch::manual_seed(static_cast<uint64_t>(config.seed));
  return std::make_shared<JointToyModel>("joint",
                                         std::make_shared<JointToyNetwork>(config.joint_toy.width));
}

JointToyTrainer::JointToyTrainer(std::shared_ptr<JointToyModel> model,
                                 const TrainJointToyConfig& config)
    : Trainer(plan_of(model, config), config.train, at::kCPU), model_(std::move(model)) {}

JointLoss JointToyTrainer::loss_of(const std::vector<JointToyInputs>& batches) const {
  return joint_loss_of<JointToyInputs>(
      batches,
      [this](const JointToyInputs& inputs) { return model_->network->features(inputs); },
      [this](const at::Tensor& features) { return model_->network->loss(features); });
}

at::Tensor JointToyTrainer::step(const std::vector<JointToyInputs>& batches) {
  return accumulate_joint(1, loss_of(batches));
}

at::Tensor JointToyTrainer::evaluate(const JointToyInputs& batch) const {
  const std::vector<JointToyInputs> one = {batch};
  return evaluate_joint(loss_of(one));
}

JointToyRun::JointToyRun(const LoadedJointToy& loaded, const RunProcess& process)
    : ShardRun(run_plan(loaded, process, {{}}, "odd pictures"),
               [&](const at::Device&) {
                 return std::make_unique<JointToyTrainer>(make_joint_toy(loaded.config),
                                                          loaded.config);
               },
               {.loop = loaded.config.train, .data = loaded.config.data, .needs = needs()}),
      trainer_(trainer_as<JointToyTrainer>()) {}

std::optional<int64_t> JointToyRun::train_group(const std::vector<Batch>& group) {
  std::vector<JointToyInputs> batches;
  int64_t samples = 0;
  for (const Batch& batch : group) {
    batches.push_back(to_inputs(batch));
    samples += batch.samples_of_step;
  }
  trainer_.step(batches);
  update(1);
  return samples;
}

void JointToyRun::add_validation_losses(const Batch& batch,
                                        int64_t /*place*/,
                                        std::vector<LossSum>& sums) {
  sums[0].add(trainer_.evaluate(to_inputs(batch)));
}

void dry_run(const LoadedJointToy& loaded) {
  std::printf("a toy of width %ld\n", static_cast<long>(loaded.config.joint_toy.width));
}

void register_joint_toy() {
  static const bool once = [] {
    config_kinds().push_back(kind_row<TrainJointToyConfig, parse_joint_toy>("", "The sections"));
    run_kinds().push_back({.key = TrainJointToyConfig::kKind,
                           .tensor_prefixes = {"joint."},
                           .load = load_run<JointToyRun, parse_joint_toy>,
                           .evaluate = [](const EvaluateCommand&) { return ExitCode::kDone; }});
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace dalle2::test
