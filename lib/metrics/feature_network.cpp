// SPDX-License-Identifier: MIT
#include "metrics/feature_network.h"

#include <ATen/ATen.h>
#include <torch/script.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "metrics/network_resize.h"
#include "metrics/script/script_archive.h"

namespace dalle2 {
namespace {

constexpr int64_t kSide = 299;
/// Pictures that the network sees at once: bounds the memory of its activations.
constexpr int64_t kImagesAtOnce = 16;
constexpr const char* kInceptionAdvice =
    "scripts/export_inception.py makes one from the weights that torch-fidelity or pytorch-fid "
    "publish; StyleGAN2-ADA's inception-2015-12-05.pt is one.";

int64_t width_of(InceptionFeature layer) {
  switch (layer) {
    case InceptionFeature::k64:
      return 64;
    case InceptionFeature::k192:
      return 192;
    case InceptionFeature::k768:
      return 768;
    case InceptionFeature::k2048:
      return 2048;
    case InceptionFeature::logits_unbiased:
      return 1008;
  }
  throw std::logic_error("a layer");
}

bool has_argument(const torch::jit::Module& module, const std::string& name) {
  const auto method = module.find_method("forward");
  if (!method) return false;
  const auto& arguments = method->function().getSchema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [&](const auto& argument) {
    return argument.name() == name;
  });
}

}  // namespace

std::string layer_name(InceptionFeature layer) {
  return enum_names<InceptionFeature>[static_cast<size_t>(layer)];
}

struct FeatureNetwork::Impl {
  ScriptArchive archive;
  std::vector<InceptionFeature> layers;  // ascending: from the first to the deepest
  NetworkResize resize;
  at::Device device;
  bool is_stylegan = false;

  Features look_at(const at::Tensor& images) const {
    std::map<InceptionFeature, std::vector<at::Tensor>> parts;
    for_parts(images.size(0), kImagesAtOnce, [&](int64_t begin, int64_t count) {
      const at::Tensor bytes = images.narrow(0, begin, count);
      for (auto& [layer, rows] : is_stylegan ? run_stylegan(bytes) : run_ours(bytes)) {
        parts[layer].push_back(std::move(rows));
      }
    });
    Features features;
    for (const auto& [layer, rows] : parts) features[layer] = at::cat(rows);
    return features;
  }

  Features run_ours(const at::Tensor& bytes) const {
    const at::Tensor images =
        resize_for_network(bytes.to(device).to(at::kFloat), kSide, resize).sub_(128).div_(128);
    const c10::IValue answer = archive.module->forward(
        {images.contiguous(at::MemoryFormat::ChannelsLast), layer_name(layers.back())});
    if (!answer.isGenericDict()) {
      throw std::runtime_error(fmt::format(
          "it returns a {}, where a dictionary of layers is expected", answer.tagKind()));
    }
    const auto found = answer.toGenericDict();
    Features features;
    for (const InceptionFeature layer : layers) {
      const auto entry = found.find(layer_name(layer));
      if (entry == found.end())
        throw std::runtime_error("its dictionary has no layer " + layer_name(layer));
      features[layer] = floats_of(entry->value()).cpu();
    }
    return features;
  }

  /// Its `no_output_bias` gives the classes' probabilities, whose logarithms do as logits. One that
  /// is too small for float32 counts as the smallest there is.
  Features run_stylegan(const at::Tensor& bytes) const {
    constexpr float kLeast = std::numeric_limits<float>::min();
    Features features;
    for (const InceptionFeature layer : layers) {
      const bool deep = layer == InceptionFeature::k2048;
      const auto found = archive.module->forward(
          {bytes.to(device)}, {{deep ? "return_features" : "no_output_bias", true}});
      features[layer] =
          deep ? floats_of(found).cpu() : floats_of(found).cpu().clamp_min(kLeast).log();
    }
    return features;
  }

  void check(const std::string& where) const {
    if (is_stylegan) {
      for (const InceptionFeature layer : layers) {
        if (layer == InceptionFeature::k2048 || layer == InceptionFeature::logits_unbiased)
          continue;
        throw ConfigError(
            "{}: {} is StyleGAN2-ADA's network, which has the layers 2048 and logits_unbiased, not "
            "{}\n  {}",
            where,
            archive.path,
            layer_name(layer),
            kInceptionAdvice);
      }
      if (resize != NetworkResize::tf1) {
        throw ConfigError(
            "{}: {} resizes by itself, as TensorFlow 1 did: /evaluate/resize must be \"tf1\"",
            where,
            archive.path);
      }
    }
    Features found;
    try {
      found = look_at(trial_pictures(/*count=*/2, /*side=*/32));
    } catch (const StoppedError&) {
      throw;
    } catch (const std::exception& error) {
      throw ConfigError("{}: the network in {} cannot be run: {}\n  {}",
                        where,
                        archive.path,
                        last_message(error),
                        kInceptionAdvice);
    }
    for (const InceptionFeature layer : layers) {
      const at::Tensor& rows = found.at(layer);
      if (rows.dim() == 2 && rows.size(0) == 2 && rows.size(1) == width_of(layer)) {
        if (rows.isfinite().all().item<bool>()) continue;
        throw ConfigError(
            "{}: layer {} of {}: the features of a picture of noise are not finite (NaN or "
            "infinite): "
            "the network's weights are damaged\n  {}",
            where,
            layer_name(layer),
            archive.path,
            kInceptionAdvice);
      }
      throw ConfigError("{}: layer {} of {}: expected features of width {}, got {}\n  {}",
                        where,
                        layer_name(layer),
                        archive.path,
                        width_of(layer),
                        rows.dim() == 2 ? std::to_string(rows.size(1)) : "another shape",
                        kInceptionAdvice);
    }
  }
};

FeatureNetwork::FeatureNetwork(const std::string& path,
                               const std::string& where,
                               const std::vector<InceptionFeature>& layers,
                               NetworkResize resize,
                               const at::Device& device)
    : impl_(std::make_unique<Impl>(
          Impl{.archive = open_script_archive(path, where, kInceptionAdvice, device),
               .layers = layers,
               .resize = resize,
               .device = device})) {
  D2_CHECK(!layers.empty(), "a layer to look at");
  std::sort(impl_->layers.begin(), impl_->layers.end());
  impl_->layers.erase(std::unique(impl_->layers.begin(), impl_->layers.end()), impl_->layers.end());
  torch::jit::Module& module = *impl_->archive.module;
  impl_->is_stylegan = has_argument(module, "return_features");
  if (!impl_->is_stylegan && !has_argument(module, "deepest")) {
    throw ConfigError("{}: {} is TorchScript, but not the Inception network: {}\n  {}",
                      where,
                      path,
                      impl_->archive.about.is_object() && impl_->archive.about.contains("kind")
                          ? "it says that it is for " + impl_->archive.about.at("kind").dump()
                          : "its forward() has neither `deepest` nor `return_features`",
                      kInceptionAdvice);
  }
  impl_->check(where);
}

FeatureNetwork::~FeatureNetwork() = default;

const std::string& FeatureNetwork::sha256() const {
  return impl_->archive.sha256;
}

Features FeatureNetwork::operator()(const at::Tensor& images) const {
  return impl_->look_at(images);
}

}  // namespace dalle2
