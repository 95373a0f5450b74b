// SPDX-License-Identifier: MIT
#include "metrics/perceptual_distance.h"

#include <ATen/ATen.h>
#include <torch/script.h>

#include "base/error.h"
#include "metrics/script_archive.h"

namespace dalle2 {
namespace {

constexpr int64_t kPicturePairsAtOnce = 16;
constexpr const char* kLpipsAdvice =
    "scripts/export_lpips.py makes one out of the weights that torchvision publishes.";

}  // namespace

struct PerceptualDistance::Impl {
  ScriptArchive archive;
  at::Device device;

  at::Tensor run(const at::Tensor& one, const at::Tensor& other) const {
    const auto prepared = [this](const at::Tensor& images) {
      return images.to(device).clamp(0, 1).mul_(2).sub_(1);
    };
    return archive.module->forward({prepared(one), prepared(other)}).toTensor().cpu();
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
  const c10::InferenceMode inference;
  bool gives_distances = false;
  try {
    const at::Tensor two = at::zeros({2, 3, image_side, image_side});
    gives_distances = impl_->run(two, two).sizes() == at::IntArrayRef{2};
  } catch (const std::exception&) {  // an operation that does not fit
  }
  if (!gives_distances) {
    throw ConfigError(
        "{}: the network in {} does not give a distance a pair of pictures of {} pixels\n"
        "  Those of alex and squeeze need 31 pixels or more, that of vgg 16. {}",
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
  return in_parts(one.size(0), kPicturePairsAtOnce, [&](int64_t begin, int64_t count) {
    return impl_->run(one.narrow(0, begin, count), other.narrow(0, begin, count));
  });
}

}  // namespace dalle2
