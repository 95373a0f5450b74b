// SPDX-License-Identifier: MIT
#include "config/vae/vae_run_config.h"

#include <fmt/format.h>

#include "config/reading/parse_config.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

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

}  // namespace dalle2
