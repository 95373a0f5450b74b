// SPDX-License-Identifier: MIT
#include "run/vae/vae_features.h"

#include <ATen/Context.h>
#include <torch/script.h>

#include "base/error.h"
#include "metrics/script/script_archive.h"

namespace dalle2 {
namespace {

/// With /train/deterministic LibTorch refuses the gradients of some operations on a GPU: that shall be
/// known before a run has begun.
/// @param some features of pictures that want gradients
void check_deterministic(const at::Tensor& some, const std::string& path) {
  if (!at::globalContext().deterministicAlgorithms()) return;
  try {
    some.sum().backward();
  } catch (const std::exception& error) {
    throw ConfigError(
        "/train/deterministic: the gradients of the network in {} (/train/vgg_path) have no "
        "deterministic form on this device: \"{}\"\n  A network made by this version's "
        "scripts/export_vgg.py has one: make it again, or set /train/deterministic to false.",
        path,
        last_message(error));
  }
}

}  // namespace

ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device) {
  if (!config.vae.use_vgg_and_gan) return nullptr;
  constexpr const char* kWhere = "/train/vgg_path";
  constexpr const char* kAdvice =
      "scripts/export_vgg.py makes one from the weights that torchvision publishes.";
  const ScriptArchive archive =
      open_script_archive(config.train.vgg_path.value(), kWhere, kAdvice, device);
  const ImageFeatures features = [module = archive.module](const at::Tensor& images) {
    return floats_of(module->forward({images}));
  };
  const int64_t side = config.data.image_size;
  std::string found;
  try {
    use_own_convolutions(*archive.module, device);
    const at::Tensor some = features(
        trial_pictures(/*count=*/2, side).to(device, at::kFloat).div_(255).requires_grad_());
    const bool has_shape = some.dim() == 2 && some.size(0) == 2;
    const bool is_finite = some.isfinite().all().item<bool>();
    if (has_shape && some.requires_grad() && is_finite) {
      check_deterministic(some, archive.path);
      return features;
    }
    found = !some.requires_grad() ? "features without gradients"
            : has_shape           ? "features that are not finite (NaN or infinite)"
                                  : c10::str(some.sizes());
  } catch (const ConfigError&) {
    throw;
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
