// SPDX-License-Identifier: MIT
#include "metrics/image_encoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/script.h>

#include "base/error.h"
#include "base/stop_signal.h"
#include "metrics/network_resize.h"
#include "metrics/script/script_archive.h"

namespace dalle2 {
namespace {

constexpr int64_t kEncodedAtOnce = 16;

at::Tensor by_channel(const std::vector<double>& values, const at::Device& device) {
  return at::tensor(values, at::kFloat).to(device).view({1, -1, 1, 1});
}

}  // namespace

struct ImageEncoder::Impl {
  FrechetDistanceConfig config;
  at::Device device;
  ScriptArchive archive;
  at::Tensor mean, std;  // [1, 3, 1, 1]

  at::Tensor run(const at::Tensor& bytes) const {
    const at::Tensor images =
        resize_for_network(bytes.to(device).to(at::kFloat), config.image_size, config.resize)
            .div_(255)
            .sub_(mean)
            .div_(std);
    return floats_of(archive.module->forward({images})).cpu();
  }

  at::Tensor look_at(const at::Tensor& images) const {
    return in_parts(images.size(0), kEncodedAtOnce, [&](int64_t begin, int64_t count) {
      return run(images.narrow(0, begin, count));
    });
  }
};

ImageEncoder::ImageEncoder(const FrechetDistanceConfig& config,
                           const std::string& where,
                           const at::Device& device) {
  if (!config.feature_extractor_weights_path) {
    throw ConfigError(
        "{}: expected the file of the network, got null\n  {}", where, kEncoderAdvice);
  }
  const std::string& path = *config.feature_extractor_weights_path;
  impl_ = std::make_unique<Impl>(
      Impl{.config = config,
           .device = device,
           .archive = open_script_archive(path, where, kEncoderAdvice, device),
           .mean = by_channel(config.mean, device),
           .std = by_channel(config.std, device)});
  std::string found;
  try {
    const at::Tensor features = impl_->look_at(trial_pictures(/*count=*/2, /*side=*/32));
    const bool has_shape = features.dim() == 2 && features.size(0) == 2 && features.size(1) > 0;
    if (has_shape && features.isfinite().all().item<bool>()) return;
    found = has_shape ? "features that are not finite"
                      : fmt::format("[{}]", fmt::join(features.sizes(), ", "));
  } catch (const StoppedError&) {
    throw;
  } catch (const std::exception& error) {
    found = "\"" + last_message(error) + "\"";
  }
  throw ConfigError(
      "{}: the network in {} was shown [2, 3, {}, {}]: expected features [2, d], got {}\n  {}",
      where,
      path,
      config.image_size,
      config.image_size,
      found,
      kEncoderAdvice);
}

ImageEncoder::~ImageEncoder() = default;

at::Tensor ImageEncoder::operator()(const at::Tensor& images) const {
  return impl_->look_at(images);
}

std::string ImageEncoder::description() const {
  constexpr size_t kDigits = 16;
  return fmt::format("FD weights {} at {} pixels, resize {}",
                     impl_->archive.sha256.substr(0, kDigits),
                     impl_->config.image_size,
                     enum_names<NetworkResize>[static_cast<size_t>(impl_->config.resize)]);
}

std::string ImageEncoder::identity() const {
  const FrechetDistanceConfig& config = impl_->config;
  return fmt::format("FD {} {} {} mean {} std {}",
                     impl_->archive.sha256,
                     config.image_size,
                     enum_names<NetworkResize>[static_cast<size_t>(config.resize)],
                     fmt::join(config.mean, " "),
                     fmt::join(config.std, " "));
}

}  // namespace dalle2
