// SPDX-License-Identifier: MIT
#include "config/vae/vae_run_config.h"

#include <fmt/format.h>

#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

constexpr const char* kVaePage = R"(
## Files that train a VAE

A file with the root key `vae` trains a VQGAN-VAE (Esser et al. 2021), which encodes pictures as small maps of codes and
decodes such maps into pictures. The keys and defaults are those of VQGanVAE and VQGanVAETrainer in
muse-maskgit-pytorch. With `vae.kind` `dalle2`, the network is that of dalle2-pytorch. These rules apply between the sections:

| if | then |
|---|---|
| always | `data.image_size` is divisible by 2 to the power of `vae.layers`, or for a `vit` by `vae.encdec_patch_size` |
| always | `train.lora.rank` is 0: a VAE is trained as a whole |
| `vae.image_size` is given | `data.image_size` equals it |
| `vae.use_vgg_and_gan` is true | `train.vgg_path` is given |
| `vae.use_vgg_and_gan` is true | `data.image_size` is at least 4 times 2 to the power of `vae.discr_layers` |
| `vae.kind` is `muse`, and `vae.lookup_free_quantization` is true | `vae.codebook_size` is a power of two |

)";

void check_sides(const TrainVaeConfig& config, Faults& faults) {
  const int64_t side = config.data.image_size;
  if (side % config.vae.reduction() != 0) {
    faults.error(
        "/data/image_size",
        fmt::format("must be divisible by {} ({}), got {}",
                    config.vae.reduction(),
                    config.vae.is_vit() ? "vae.encdec_patch_size" : "2 to the power of vae.layers",
                    side));
  }
  if (config.vae.image_size && *config.vae.image_size != side) {
    faults.error("/data/image_size",
                 fmt::format("must be vae.image_size ({}), got {}", *config.vae.image_size, side));
  }
  // Each halving of the discriminator, and its last kernel of four pixels.
  const int64_t least = int64_t{4} << config.vae.discr_layers;
  if (config.vae.use_vgg_and_gan && side < least) {
    faults.error(
        "/data/image_size",
        fmt::format("the discriminator of vae.discr_layers = {} needs pictures of {} pixels "
                    "or more, got {}",
                    config.vae.discr_layers,
                    least,
                    side));
  }
}

void check_training(const TrainVaeConfig& config, Faults& faults) {
  if (config.train.lora.rank > 0) {
    faults.error("/train/lora", "has no place here: a VAE is trained as a whole");
  }
  if (config.vae.use_vgg_and_gan && !config.train.vgg_path) {
    faults.error("/train/vgg_path",
                 "must be given: the perceptual loss of vae.use_vgg_and_gan compares the features "
                 "of a VGG16 (scripts/export_vgg.py makes the file); set vae.use_vgg_and_gan to "
                 "false to train the reconstruction alone");
  }
  if (!config.vae.use_vgg_and_gan && config.train.vgg_path) {
    faults.warn(
        "/train/vgg_path",
        "has no effect: vae.use_vgg_and_gan is false, so the reconstruction alone is trained");
  }
}

void check_vae(const Json& /*root*/, LoadedVaeConfig& loaded, Faults& faults) {
  TrainVaeConfig& config = loaded.config;
  config.data.apply_exif = config.data.turns(/*by_default=*/false);  // a resumed run keeps it
  const bool vae = !faults.has_error_under("/vae");
  if (vae && !faults.has_error_under("/data")) check_sides(config, faults);
  if (vae && !faults.has_error_under("/train")) check_training(config, faults);
  check_train_rules(config, faults);
}

}  // namespace

LoadedVaeConfig parse_vae_config(const std::string& json,
                                 const std::string& origin,
                                 const ReadOptions& options) {
  return parse_config<LoadedVaeConfig>(json, origin, options, check_vae);
}

ConfigKind vae_kind() {
  return kind_row<TrainVaeConfig, parse_vae_config>(kVaePage, "a VAE");
}

}  // namespace dalle2
