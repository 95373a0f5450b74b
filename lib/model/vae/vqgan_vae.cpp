// SPDX-License-Identifier: MIT
#include "model/vae/vqgan_vae.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/torch.h>

#include <optional>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr double kMostGanWeight = 1e4;
constexpr double kLeastGradient = 1e-8;
constexpr double kPenaltyWeight = 10.0;
constexpr double kLogEps = 1e-10;

/// @param scale that the gradients have on their way
at::Tensor gradient_at(const at::Tensor& of, const at::Tensor& at, double scale) {
  return torch::autograd::grad({of * scale}, {at})[0] / scale;
}

at::Tensor unrounded(const at::Tensor& values) {
  return at::isReducedFloatingType(values.scalar_type()) ? values.to(at::kFloat) : values;
}

at::Tensor for_features(const at::Tensor& images) {
  const int64_t channels = images.size(1);
  return in_order_for_convolutions(channels == 1   ? images.expand({-1, 3, -1, -1})
                                   : channels == 4 ? images.narrow(1, 0, 3)
                                                   : images);
}

/// Brings gradients of means over pictures and features, some 1e-8, into the range of fp16.
constexpr double kIntoHalf = 4096;

/// A loss whose gradient at `images` is known: `value`, with `gradient` for the backward pass.
/// It meets the scale of the loss before it is rounded to half precision.
struct KnownGradient : torch::autograd::Function<KnownGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& images,
                            const at::Tensor& value,
                            const at::Tensor& gradient) {
    context->save_for_backward({gradient});
    context->saved_data["dtype"] = images.scalar_type();
    return value.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outer) {
    const at::Tensor gradient = context->get_saved_variables()[0];
    const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
    return {(gradient * outer[0].to(gradient.scalar_type())).to(dtype), {}, {}};
  }
};

}  // namespace

VaeAutoencoderImpl::VaeAutoencoderImpl(const VaeConfig& config) {
  enc_dec = register_module("enc_dec", make_vae_enc_dec(config));
  quantizer = register_module(config.is_muse() ? "quantizer" : "vq",
                              make_quantizer(config.encoded_dim(), config));
}

VqganVaeImpl::VqganVaeImpl(const VaeConfig& config)
    : config_(config), autoencoder_(std::make_shared<VaeAutoencoderImpl>(config)) {
  register_module("enc_dec", autoencoder_->enc_dec);
  register_module(quantizer_name(), autoencoder_->quantizer);
  if (config.use_vgg_and_gan) {
    discr_ = register_module(
        "discr",
        std::make_shared<DiscriminatorImpl>(config.dim, config.discr_layers, config.channels));
  }
}

void VqganVaeImpl::check_images(const at::Tensor& images, bool any_size) const {
  if (images.dim() != 4 || images.size(1) != config_.channels) {
    throw DataError("pictures for the VAE: expected [B, {}, H, W], got {}",
                    config_.channels,
                    c10::str(images.sizes()));
  }
  for (const int64_t axis : {2, 3}) {
    const int64_t side = images.size(axis);
    const char* name = axis == 2 ? "height" : "width";
    if (side % config_.reduction() != 0) {
      throw DataError("pictures for the VAE: {} must be divisible by {}, got {}",
                      name,
                      config_.reduction(),
                      side);
    }
    if (!any_size && !config_.is_muse() && side != *config_.image_size) {
      throw DataError("pictures for the VAE: {} must be vae.image_size ({}), got {}",
                      name,
                      *config_.image_size,
                      side);
    }
  }
}

VaeReconstruction VqganVaeImpl::reconstruct(const at::Tensor& images,
                                            const at::Generator& generator) {
  check_images(images);
  VaeReconstruction made;
  made.quantized =
      autoencoder_->quantizer->quantize(autoencoder_->enc_dec->encode(images), generator);
  made.images = autoencoder_->enc_dec->decode(made.quantized.map);
  return made;
}

at::Tensor VqganVaeImpl::encode_unquantized(const at::Tensor& images) {
  check_images(images, /*any_size=*/true);
  return autoencoder_->enc_dec->encode(images);
}

at::Tensor VqganVaeImpl::decode_unquantized(const at::Tensor& map) {
  return autoencoder_->enc_dec->decode(autoencoder_->quantizer->quantize(map, {}).map);
}

at::Tensor VqganVaeImpl::reconstruction_loss(const at::Tensor& made,
                                             const at::Tensor& images) const {
  return config_.l2_recon_loss ? at::mse_loss(made, images) : at::l1_loss(made, images);
}

at::Tensor VqganVaeImpl::adversarial_loss(const at::Tensor& logits) const {
  if (config_.use_hinge_loss) return -logits.mean();
  return -(logits.sigmoid() + kLogEps).log().mean();
}

VaeLosses VqganVaeImpl::autoencoder_losses(const at::Tensor& images,
                                           const ImageFeatures& features,
                                           const at::Generator& generator,
                                           bool with_gan) {
  const VaeReconstruction made = reconstruct(images, generator);
  VaeLosses losses;
  losses.indices = made.quantized.indices;
  losses.quantizer = made.quantized.loss.detach();
  if (!config_.use_vgg_and_gan) {
    losses.total = reconstruction_loss(made.images, images);
    losses.reconstruction = losses.total.detach();
    if (config_.quantizer_loss_without_gan) losses.total = losses.total + made.quantized.loss;
    return losses;
  }
  // The gradient at the pictures is all that the decoder needs of the losses. It is computed loss by
  // loss, for the weight of the adversarial one.
  const at::Tensor pictures = unrounded(made.images.detach()).requires_grad_();
  const double scale = made.images.scalar_type() == at::kHalf ? kIntoHalf : 1;
  const at::Tensor reconstruction = reconstruction_loss(pictures, images);
  at::Tensor wanted;
  {
    const torch::NoGradGuard no_grad;
    wanted = features(for_features(images));
  }
  const at::Tensor perceptual = at::mse_loss(features(for_features(pictures)), wanted);
  const at::Tensor perceptual_gradient = gradient_at(perceptual, pictures, scale);
  at::Tensor gradient = gradient_at(reconstruction, pictures, scale) + perceptual_gradient;
  losses.reconstruction = reconstruction.detach();
  losses.perceptual = perceptual.detach();
  at::Tensor value = losses.reconstruction + losses.perceptual;
  if (with_gan) {
    const at::Tensor adversarial = adversarial_loss(discr_->forward(pictures));
    const at::Tensor adversarial_gradient = gradient_at(adversarial, pictures, scale);
    // In fp16 that of a gradient of length 1: neither does it vanish, nor does its product with the map
    // before the last layer overflow.
    const bool is_half = made.images.scalar_type() == at::kHalf;
    const auto norm_at_last_layer = [&](const at::Tensor& of) {
      const at::Tensor length = is_half ? of.norm().clamp_min(kLeastGradient) : at::Tensor();
      const at::Tensor at_weight =
          torch::autograd::grad({made.images},
                                {autoencoder_->enc_dec->last_weight()},
                                {(is_half ? of / length : of).to(made.images.scalar_type())},
                                /*retain_graph=*/true)[0];
      const at::Tensor norm = unrounded(at_weight).norm();
      return is_half ? norm * length : norm;
    };
    const at::Tensor of_gan = norm_at_last_layer(adversarial_gradient);
    const at::Tensor divisor =
        config_.is_muse() ? of_gan.clamp_min(kLeastGradient) : of_gan + kLeastGradient;
    losses.gan_weight =
        (norm_at_last_layer(perceptual_gradient) / divisor).clamp_max(kMostGanWeight);
    losses.generator = adversarial.detach();
    gradient = gradient + losses.gan_weight * adversarial_gradient;
    value = value + losses.gan_weight * losses.generator;
  }
  losses.total = KnownGradient::apply(made.images, value, gradient) + made.quantized.loss;
  return losses;
}

at::Tensor VqganVaeImpl::discriminator_loss(const at::Tensor& images,
                                            const at::Generator& generator,
                                            bool with_penalty) {
  D2_CHECK(discr_, "a discriminator to train");
  at::Tensor made;
  {
    const torch::NoGradGuard no_grad;
    made = reconstruct(images, generator).images;
  }
  const at::Tensor real = with_penalty ? images.detach().requires_grad_() : images;
  const at::Tensor of_made = discr_->forward(made);
  // Under autocast the penalty, a gradient of a gradient, would keep two digits.
  std::optional<c10::impl::ExcludeDispatchKeyGuard> no_autocast;
  if (with_penalty) no_autocast.emplace(c10::autocast_dispatch_keyset);
  const at::Tensor of_real = discr_->forward(real);
  const at::Tensor loss =
      config_.use_hinge_loss
          ? (at::relu(1 + of_made) + at::relu(1 - of_real)).mean()
          : (-(1 - of_made.sigmoid() + kLogEps).log() - (of_real.sigmoid() + kLogEps).log()).mean();
  if (!with_penalty) return loss;
  const at::Tensor slopes = torch::autograd::grad({of_real},
                                                  {real},
                                                  {at::ones_like(of_real)},
                                                  /*retain_graph=*/true,
                                                  /*create_graph=*/true)[0];
  return loss + kPenaltyWeight * (slopes.flatten(1).norm(2, 1) - 1).square().mean();
}

VqganVae frozen_vae(VaeConfig config) {
  config.use_vgg_and_gan = false;
  VqganVae vae(config);
  for (at::Tensor& parameter : vae->parameters()) parameter.requires_grad_(false);
  return vae;
}

}  // namespace dalle2
