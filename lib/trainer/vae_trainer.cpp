// SPDX-License-Identifier: MIT
#include "trainer/vae_trainer.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

ModelPlan plan_parts(const VqganVae& vae, const VaeTrainConfig& config) {
  ModelPlan plan{.model = vae.ptr(),
                 .model_name = "VAE",
                 .part_noun = "part",
                 .untrained_reason = "vae.use_vgg_and_gan is false"};
  PartPlan autoencoder{.name = "autoencoder", .prefix = "", .network = vae->autoencoder()};
  autoencoder.make_network = [shape = vae->config()] {
    return std::make_shared<VaeAutoencoderImpl>(shape);
  };
  autoencoder.options = part_options(config, 0);
  autoencoder.averages_at_end_of_step = true;  // its codebook moves in both parts of a step
  plan.parts.push_back(std::move(autoencoder));
  if (!vae->discriminator()) return plan;
  PartPlan discriminator{
      .name = "discriminator", .prefix = "discr.", .network = vae->discriminator()};
  discriminator.make_network = [shape = vae->config()] {
    return std::make_shared<DiscriminatorImpl>(shape.dim, shape.discr_layers, shape.channels);
  };
  VaeTrainConfig own = config;
  own.max_grad_norm = config.discr_max_grad_norm;
  discriminator.options = part_options(own, 1);
  plan.parts.push_back(std::move(discriminator));
  return plan;
}

/// sum += part * weight, of what both have.
void add_weighted(at::Tensor& sum, const at::Tensor& part, double weight) {
  if (!part.defined()) return;
  sum = sum.defined() ? sum + part * weight : part * weight;
}

}  // namespace

VaeTrainer::VaeTrainer(VqganVae vae,
                       const VaeTrainConfig& config,
                       ImageFeatures features,
                       const at::Device& device)
    : Trainer(plan_parts(vae, config), config, device),
      vae_(std::move(vae)),
      features_(std::move(features)) {}

VaeLosses VaeTrainer::step_autoencoder(const at::Tensor& images,
                                       const at::Generator& generator,
                                       bool with_gan,
                                       double weight) {
  const at::Tensor local = images.to(device());
  const auto batch = static_cast<double>(images.size(0));
  VaeLosses sum;
  std::vector<at::Tensor> indices;
  const auto loss_of = [&](const ChunkRange& range) {
    const VaeLosses losses = vae_->autoencoder_losses(
        local.narrow(0, range.begin, range.length), features_, generator, with_gan);
    const double share = weight * static_cast<double>(range.length) / batch;
    add_weighted(sum.reconstruction, losses.reconstruction, share);
    add_weighted(sum.perceptual, losses.perceptual, share);
    add_weighted(sum.generator, losses.generator, share);
    add_weighted(sum.gan_weight, losses.gan_weight, share);
    add_weighted(sum.quantizer, losses.quantizer, share);
    indices.push_back(losses.indices);
    return losses.total;
  };
  sum.total = accumulate(kAutoencoder, images.size(0), std::nullopt, weight, loss_of);
  sum.indices = at::cat(indices);
  return sum;
}

at::Tensor VaeTrainer::step_discriminator(const at::Tensor& images,
                                          const at::Generator& generator,
                                          bool with_penalty,
                                          double weight) {
  const at::Tensor local = images.to(device());
  const auto loss_of = [&](const ChunkRange& range) {
    return vae_->discriminator_loss(
        local.narrow(0, range.begin, range.length), generator, with_penalty);
  };
  return accumulate(kDiscriminator, images.size(0), std::nullopt, weight, loss_of);
}

void VaeTrainer::pass_without_samples(const std::vector<int64_t>& parts) {
  vae_->quantizer()->quantize_nothing();
  Trainer::pass_without_samples(parts);
}

void VaeTrainer::learn_codes(int64_t number, const at::Generator& generator) {
  vae_->quantizer()->learn(generator, part(number).was_skipped);
}

VaeEvaluation VaeTrainer::evaluate(const at::Tensor& images, bool averaged) {
  const torch::NoGradGuard no_grad;
  const EvalScope eval(*vae_);
  std::optional<AveragesInPlace> average;
  if (averaged) put_averages_in_place(average);
  const at::Tensor local = images.to(device());
  std::vector<at::Tensor> made;
  VaeEvaluation evaluation;
  evaluation.reconstruction_loss =
      evaluate_chunks(images.size(0), std::nullopt, [&](const ChunkRange& range) {
        const at::Tensor chunk = local.narrow(0, range.begin, range.length);
        made.push_back(vae_->reconstruct(chunk).images.to(at::kFloat));
        return vae_->reconstruction_loss(made.back(), chunk);
      });
  evaluation.images = at::cat(made);
  return evaluation;
}

bool is_vae_weights_alone(const Cursor& root) {
  return root.value().is_dict() && !root.has("steps");
}

std::shared_ptr<torch::nn::Module> VaeTrainer::swap_network(
    size_t index, std::shared_ptr<torch::nn::Module> network) const {
  if (index == 0) {
    return vae_->swap_autoencoder(std::static_pointer_cast<VaeAutoencoderImpl>(std::move(network)));
  }
  return vae_->swap_discriminator(std::static_pointer_cast<DiscriminatorImpl>(std::move(network)));
}

void VaeTrainer::list_state(TrainState& state) const {
  state.model("model");
  state.optimizer("optim", 0);
  if (has_discriminator()) state.optimizer("discr_optim", 1);
  state.version("version");
  state.steps("steps");
  state.extras();
  state.averages({});
  state.post_hoc_averages("post_hoc_ema");
  state.open_step("open_step");
  state.scaler("scaler", 0);
  if (has_discriminator()) state.scaler("discr_scaler", 1);
  state.skipped("skipped_updates", /*flat=*/false);
}

}  // namespace dalle2
