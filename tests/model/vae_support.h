// SPDX-License-Identifier: MIT
// VAEs as the fixtures of make_vae.py and make_vae_trainer.py describe them.
#pragma once

#include <torch/torch.h>

#include "config/vae/vae_run_config.h"
#include "model/vae/vqgan_vae.h"
#include "support/rounding_noise.h"

namespace dalle2::test {

// float32 through some twenty layers, summed in another order.
inline constexpr double kVaeTolerance = 1e-4;
// The backward pass is as deep again, and sums over all pixels.
inline constexpr double kVaeGradientTolerance = 5e-4;

inline VaeConfig vae_config_of(const nlohmann::json& json) {
  const nlohmann::json whole = {
      {"vae", json},
      {"data", {{"folder", "pictures"}, {"image_size", 32}, {"batch_size", 2}}},
      {"train", {{"num_train_steps", 1}, {"vgg_path", "vgg.pt"}}},
      {"tracker",
       {{"log", nlohmann::json::object()},
        {"save", {{"save_to", "local"}, {"save_latest_to", "latest.pth"}}}}}};
  return parse_vae_config(whole.dump(), "fixture", {}).config.vae;
}

/// The codes are signs, or those of a codebook.
inline VaeConfig small_vae(bool with_codebook = false) {
  VaeConfig config;
  config.dim = 16;
  config.layers = 1;
  config.discr_layers = 1;
  config.codebook_size = 16;
  if (with_codebook) {
    config.lookup_free_quantization = false;
    config.vq_codebook_dim = 8;
  }
  return config;
}

inline VqganVae filled_vae(const VaeConfig& config) {
  VqganVae vae(config);
  fill_parameters(*vae);
  return vae;
}

/// The reference's `encode`: a map that is quantised by the muse kind, not yet by the dalle2 kind.
inline at::Tensor encoded(VqganVae vae, const at::Tensor& images) {
  const at::Tensor map = vae->encode_unquantized(images);
  return vae->config().is_muse() ? vae->quantizer()->quantize(map, {}).map : map;
}

/// The reference's `decode`: pictures of such a map.
inline at::Tensor decoded(VqganVae vae, const at::Tensor& map) {
  return vae->config().is_muse() ? vae->autoencoder()->enc_dec->decode(map)
                                 : vae->decode_unquantized(map);
}

/// Stored as 256ths.
inline at::Tensor pictures_of(const Fixture& fixture, const std::string& name) {
  return fixture.tensor(name).to(at::kFloat) / 256;
}

inline ImageFeatures features_of(const Fixture& fixture) {
  const at::Tensor weight = fixture.tensor("features");
  return [weight](const at::Tensor& images) {
    return at::conv2d(images, weight, {}, 2).tanh().flatten(1);
  };
}

inline void set_codebook(VqganVae vae, const StateDict& codebook) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : codebook) {
    for (const auto& item : vae->named_buffers()) {
      if (item.key() == name) item.value().copy_(tensor.view(item.value().sizes()));
    }
  }
}

}  // namespace dalle2::test
