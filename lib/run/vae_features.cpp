// SPDX-License-Identifier: MIT
#include "run/vae_features.h"

#include <torch/script.h>

#include "base/error.h"
#include "metrics/script_archive.h"

namespace dalle2 {

ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device) {
  if (!config.vae.use_vgg_and_gan) return nullptr;
  constexpr const char* kWhere = "/train/vgg_path";
  constexpr const char* kAdvice =
      "scripts/export_vgg.py makes one out of the weights that torchvision publishes.";
  const ScriptArchive archive =
      open_script_archive(config.train.vgg_path.value(), kWhere, kAdvice, device);
  const ImageFeatures features = [module = archive.module](const at::Tensor& images) {
    return module->forward({images}).toTensor();
  };
  const int64_t side = config.data.image_size;
  std::string found;
  try {
    const at::Tensor some =
        features(at::zeros({2, 3, side, side}, at::TensorOptions(device).dtype(at::kFloat))
                     .requires_grad_());
    if (some.dim() == 2 && some.size(0) == 2 && some.requires_grad()) return features;
    found = some.requires_grad() ? c10::str(some.sizes()) : "features without gradients";
  } catch (const std::exception& error) {
    found = "\"" + last_message(error) + "\"";
  }
  throw ConfigError(
      "{}: the network in {} was shown [2, 3, {}, {}]: expected features [2, F], got {}\n  {}",
      kWhere,
      archive.path,
      side,
      side,
      found,
      kAdvice);
}

}  // namespace dalle2
