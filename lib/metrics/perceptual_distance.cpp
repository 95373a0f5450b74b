// SPDX-License-Identifier: MIT
#include "metrics/perceptual_distance.h"

#include <ATen/ATen.h>
#include <torch/script.h>

#include "base/error.h"
#include "base/stop_signal.h"
#include "metrics/script/script_archive.h"

namespace dalle2 {
namespace {

constexpr int64_t kPicturePairsAtOnce = 16;
constexpr const char* kLpipsAdvice =
    "scripts/export_lpips.py makes one from the weights that torchvision publishes.";

}  // namespace

struct PerceptualDistance::Impl {
  ScriptArchive archive;
  at::Device device;

  at::Tensor run(const at::Tensor& one, const at::Tensor& other) const {
    const auto prepared = [this](const at::Tensor& images) {
      return images.to(device).clamp(0, 1).mul_(2).sub_(1);
    };
    return floats_of(archive.module->forward({prepared(one), prepared(other)})).cpu();
  }

  at::Tensor look_at(const at::Tensor& one, const at::Tensor& other) const {
    return in_parts(one.size(0), kPicturePairsAtOnce, [&](int64_t begin, int64_t count) {
      return run(one.narrow(0, begin, count), other.narrow(0, begin, count));
    });
  }
};

PerceptualDistance::PerceptualDistance(const std::string& path,
                                       const std::string& where,
                                       LpipsNet net,
                                       int64_t image_side,
                                       const at::Device& device)
    : impl_(std::make_unique<Impl>(Impl{
          .archive = open_script_archive(path, where, kLpipsAdvice, device), .device = device})) {
  const auto& about = impl_->archive.about;
  const std::string net_name = enum_names<LpipsNet>[static_cast<size_t>(net)];
  if (!about.is_object() || about.value("kind", Json()) != "lpips") {
    throw ConfigError(
        "{}: {} is TorchScript, but not a network for LPIPS\n  {}", where, path, kLpipsAdvice);
  }
  if (about.value("net", Json()) != net_name) {
    throw ConfigError("{}: {} has the backbone {}, and `net_type` is \"{}\"",
                      where,
                      path,
                      about.value("net", Json()).dump(),
                      net_name);
  }
  at::Tensor distances;
  try {
    const at::Tensor four = trial_pictures(/*count=*/4, image_side).to(at::kFloat).div_(255);
    distances = impl_->look_at(four.narrow(0, 0, 2), four.narrow(0, 2, 2));
  } catch (const StoppedError&) {
    throw;
  } catch (const std::exception&) {  // an operation that does not fit
  }
  if (distances.defined() && !distances.isfinite().all().item<bool>()) {
    throw ConfigError(
        "{}: the network in {} gives a distance of pictures of noise that is not finite (NaN or "
        "infinite): its weights are damaged\n  {}",
        where,
        path,
        kLpipsAdvice);
  }
  if (!distances.defined() || distances.sizes() != at::IntArrayRef{2}) {
    throw ConfigError(
        "{}: the network in {} does not give one distance per pair of pictures of {} pixels\n  The "
        "networks of alex and squeeze need 31 pixels or more, that of vgg 16. {}",
        where,
        path,
        image_side,
        kLpipsAdvice);
  }
}

PerceptualDistance::~PerceptualDistance() = default;

const std::string& PerceptualDistance::sha256() const {
  return impl_->archive.sha256;
}

at::Tensor PerceptualDistance::operator()(const at::Tensor& one, const at::Tensor& other) const {
  return impl_->look_at(one, other);
}

}  // namespace dalle2
