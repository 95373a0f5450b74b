// SPDX-License-Identifier: MIT
// `decoder.vae[i]`: the VAE in whose latent space a stage of the cascade works.
#pragma once

#include <optional>
#include <string>

#include "config/reading/reflect.h"
#include "config/vae/vae_config.h"

namespace dalle2 {

struct LatentConfig {
  static constexpr const char* kDoc =
      "The VQGAN-VAE behind which a stage works (latent diffusion, Rombach et al. 2022). It is "
      "frozen; a checkpoint of the decoder holds its weights, and a resumed run takes them from "
      "there.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::string checkpoint;  // required
  std::optional<VaeConfig> model;
  bool use_ema = true;
  double scale = 1.0;

  void fields(auto& f) {
    D2_REQUIRED(checkpoint,
                "A checkpoint or model file of a VAE: `checkpoint.pth` of a run, `vae.N.pt`, "
                "`vae.N.ema.pt`, or safetensors.",
                not_empty());
    D2_FIELD(model, "Its `vae` section. Null: the one that the checkpoint carries.");
    D2_FIELD(use_ema, "Averaged weights where the file has them.");
    D2_FIELD(scale,
             "Extension: latents are multiplied by it before they are noised. 1 over their "
             "standard deviation, which a run prints, suits the noise schedules; 1 is the "
             "reference's.",
             above(0));
  }
};

}  // namespace dalle2
