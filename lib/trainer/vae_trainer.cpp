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
                 .untrained_reason = "vae.use_vgg_and_gan is false",
                 .has_lanes = false};  // entropies and adaptive weights are of the whole batch
  PartPlan autoencoder{.name = "autoencoder", .prefix = "", .network = vae->autoencoder()};
  autoencoder.make_network = [shape = vae->config()] {
    return std::make_shared<VaeAutoencoderImpl>(shape);
  };
  autoencoder.options = part_options(config, 0);
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

/// sum += part * weight, of what is there.
void add_weighted(at::Tensor& sum, const at::Tensor& part, double weight) {
  if (part.defined()) add_to(sum, part * weight);
}

}  // namespace

VaeTrainer::VaeTrainer(VqganVae vae,
                       const VaeTrainConfig& config,
                       ImageFeatures features,
                       const at::Device& device)
    : Trainer(plan_parts(vae, config), config, device),
      vae_(std::move(vae)),
      features_(std::move(features)) {}

std::vector<VaeLosses> VaeTrainer::step(const VaeGroups& groups) {
  const bool with_gan = !groups.discriminator.empty();
  std::vector<VaeLosses> losses;
  for (const VaeBatch& batch : groups.autoencoder) {
    if (batch.images) {
      losses.push_back(pass_autoencoder(batch, with_gan));
    } else {
      pass_nothing(kAutoencoder, batch.share);
    }
  }
  optimize(kAutoencoder);
  vae_->quantizer()->learn(groups.codes, part(kAutoencoder).was_skipped);
  for (const VaeBatch& batch : groups.discriminator) {
    if (batch.images) {
      pass_discriminator(batch, groups.with_penalty);
    } else {
      pass_nothing(kDiscriminator, batch.share);
    }
  }
  if (with_gan) {
    optimize(kDiscriminator);
    vae_->quantizer()->learn(groups.discriminator_codes, part(kDiscriminator).was_skipped);
    average(kDiscriminator);
  }
  average(kAutoencoder);
  return losses;
}

VaeLosses VaeTrainer::pass_autoencoder(const VaeBatch& batch, bool with_gan) {
  TrainedPart& trained = part(kAutoencoder);
  const at::Tensor images = batch.images();
  VaeLosses sum;
  std::vector<at::Tensor> indices;
  for (const Pass& pass : trained.passes_of(images.size(0), std::nullopt, batch.share)) {
    const at::Tensor loss = trained.forward(pass, [&] {
      const VaeLosses losses = vae_->autoencoder_losses(
          images.narrow(0, pass.range.begin, pass.range.length), features_, batch.random, with_gan);
      add_weighted(sum.reconstruction, losses.reconstruction, pass.factor);
      add_weighted(sum.perceptual, losses.perceptual, pass.factor);
      add_weighted(sum.generator, losses.generator, pass.factor);
      add_weighted(sum.gan_weight, losses.gan_weight, pass.factor);
      add_weighted(sum.quantizer, losses.quantizer, pass.factor);
      indices.push_back(losses.indices);
      return losses.total;
    });
    if (pass.is_last) trained.begin_exchange();
    trained.backward(pass, loss);
    add_to(sum.total, loss.detach());
  }
  if (batch.share.is_last) trained.finish_exchange();
  trained.add_loss(sum.total);
  sum.indices = at::cat(indices);
  return sum;
}

void VaeTrainer::pass_discriminator(const VaeBatch& batch, bool with_penalty) {
  TrainedPart& trained = part(kDiscriminator);
  const at::Tensor images = batch.images();
  at::Tensor total;
  for (const Pass& pass : trained.passes_of(images.size(0), std::nullopt, batch.share)) {
    const at::Tensor loss = trained.forward(pass, [&] {
      return vae_->discriminator_loss(
          images.narrow(0, pass.range.begin, pass.range.length), batch.random, with_penalty);
    });
    if (pass.is_last) trained.begin_exchange();
    trained.backward(pass, loss);
    add_to(total, loss.detach());
  }
  if (batch.share.is_last) trained.finish_exchange();
  trained.add_loss(total);
}

/// In the place of a batch of which this rank has no samples, while others have some.
void VaeTrainer::pass_nothing(int64_t number, const BatchShare& share) {
  vae_->quantizer()->quantize_nothing();
  if (share.is_last) part(number).finish_exchange();
}

VaeEvaluation VaeTrainer::evaluate(const at::Tensor& images, bool averaged) {
  const torch::NoGradGuard no_grad;
  const EvalScope eval(*vae_);
  std::optional<AveragesInPlace> average;
  if (averaged) put_averages_in_place(average);
  const at::Tensor local = images.to(device());
  VaeEvaluation evaluation;
  evaluation.images = at::empty_like(local, at::kFloat);
  evaluation.reconstruction_loss =
      evaluate_chunks(images.size(0), std::nullopt, [&](const ChunkRange& range) {
        const at::Tensor chunk = local.narrow(0, range.begin, range.length);
        const at::Tensor made = vae_->reconstruct(chunk).images.to(at::kFloat);
        evaluation.images.narrow(0, range.begin, range.length).copy_(made);
        return vae_->reconstruction_loss(made, chunk);
      });
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
  state.scaler("scaler", 0);
  if (has_discriminator()) state.scaler("discr_scaler", 1);
  state.skipped("skipped_updates", /*flat=*/false);
}

}  // namespace dalle2
