// SPDX-License-Identifier: MIT
#include "trainer/vae_trainer.h"

#include <torch/torch.h>

#include <utility>

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
  autoencoder.options = part_options(config, 0);
  plan.parts.push_back(std::move(autoencoder));
  if (!vae->discriminator()) return plan;
  PartPlan discriminator{
      .name = "discriminator", .prefix = "discr.", .network = vae->discriminator()};
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
    VaeLosses sum;
    std::vector<at::Tensor> indices;
    sum.total = pass_batch(kAutoencoder, batch, [&](const at::Tensor& images, double factor) {
      const VaeLosses own = vae_->autoencoder_losses(images, features_, batch.random, with_gan);
      add_weighted(sum.reconstruction, own.reconstruction, factor);
      add_weighted(sum.perceptual, own.perceptual, factor);
      add_weighted(sum.generator, own.generator, factor);
      add_weighted(sum.gan_weight, own.gan_weight, factor);
      add_weighted(sum.quantizer, own.quantizer, factor);
      indices.push_back(own.indices);
      return own.total;
    });
    if (!batch.images) continue;
    sum.indices = at::cat(indices);
    losses.push_back(std::move(sum));
  }
  optimize(kAutoencoder);
  vae_->quantizer()->learn(groups.codes, part(kAutoencoder).was_skipped);
  for (const VaeBatch& batch : groups.discriminator) {
    pass_batch(kDiscriminator, batch, [&](const at::Tensor& images, double /*factor*/) {
      return vae_->discriminator_loss(images, batch.random, groups.with_penalty);
    });
  }
  if (with_gan) {
    optimize(kDiscriminator);
    vae_->quantizer()->learn(groups.discriminator_codes, part(kDiscriminator).was_skipped);
    average(kDiscriminator);
  }
  average(kAutoencoder);
  return losses;
}

at::Tensor VaeTrainer::pass_batch(int64_t number,
                                  const VaeBatch& batch,
                                  const LossOfPass& loss_of) {
  TrainedPart& trained = part(number);
  at::Tensor total;
  if (batch.images) {
    const at::Tensor images = batch.images();
    total = trained.run_passes(images.size(0), batch.share, [&](const Pass& pass) {
      const at::Tensor loss = trained.forward(pass, [&] {
        return loss_of(images.narrow(0, pass.range.begin, pass.range.length), pass.factor);
      });
      if (pass.is_last) trained.begin_exchange();
      trained.backward(pass, loss);
      return loss.detach();
    });
  } else {
    vae_->quantizer()->quantize_nothing();  // as others do with their samples
  }
  if (batch.share.is_last) trained.finish_exchange();
  if (total.defined()) add_to(trained.loss, total);
  return total;
}

VaeEvaluation VaeTrainer::evaluate(const at::Tensor& images, bool averaged) {
  const torch::NoGradGuard no_grad;
  const AveragesInPlace eval = averages_in_place(averaged);
  const at::Tensor local = images.to(device());
  VaeEvaluation evaluation;
  evaluation.images = at::empty_like(local, at::kFloat);
  evaluation.reconstruction_loss =
      part(kAutoencoder).evaluate(images.size(0), [&](const ChunkRange& range) {
        const at::Tensor chunk = local.narrow(0, range.begin, range.length);
        const at::Tensor made = vae_->reconstruct(chunk).images.to(at::kFloat);
        evaluation.images.narrow(0, range.begin, range.length).copy_(made);
        return vae_->reconstruction_loss(made, chunk);
      });
  return evaluation;
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
