// SPDX-License-Identifier: MIT
#include "metrics/feature_network.h"

#include <ATen/ATen.h>
#include <torch/script.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "metrics/network_resize.h"
#include "metrics/script_archive.h"

namespace dalle2 {
namespace {

constexpr int64_t kSide = 299;
/// Pictures that the network sees at once: bounds the memory of its activations.
constexpr int64_t kImagesAtOnce = 16;
constexpr const char* kInceptionAdvice =
    "scripts/export_inception.py makes one out of the weights that torch-fidelity or pytorch-fid "
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

std::string layer_name(InceptionFeature layer) {
  return enum_names<InceptionFeature>[static_cast<size_t>(layer)];
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

struct FeatureNetwork::Impl {
  ScriptArchive archive;
  std::vector<InceptionFeature> layers;  // ascending: from the first to the deepest
  NetworkResize resize;
  at::Device device;
  bool is_stylegan = false;

  Features run(const at::Tensor& bytes) const {
    return is_stylegan ? run_stylegan(bytes) : run_ours(bytes);
  }

  Features run_ours(const at::Tensor& bytes) const {
    const at::Tensor images =
        resize_for_network(bytes.to(device).to(at::kFloat), kSide, resize).sub_(128).div_(128);
    const auto found = archive.module
                           ->forward({images.contiguous(at::MemoryFormat::ChannelsLast),
                                      layer_name(layers.back())})
                           .toGenericDict();
    Features features;
    for (const InceptionFeature layer : layers) {
      features[layer] = found.at(layer_name(layer)).toTensor().cpu();
    }
    return features;
  }

  /// Its `no_output_bias` gives the classes' probabilities, whose logarithms do as logits.
  Features run_stylegan(const at::Tensor& bytes) const {
    Features features;
    for (const InceptionFeature layer : layers) {
      const bool deep = layer == InceptionFeature::k2048;
      const auto found = archive.module->forward(
          {bytes.to(device)}, {{deep ? "return_features" : "no_output_bias", true}});
      features[layer] = deep ? found.toTensor().cpu() : found.toTensor().cpu().log();
    }
    return features;
  }

  void check(const std::string& where) const {
    if (is_stylegan) {
      for (const InceptionFeature layer : layers) {
        if (layer == InceptionFeature::k2048 || layer == InceptionFeature::logits_unbiased)
          continue;
        throw ConfigError(
            "{}: {} is StyleGAN2-ADA's network, which has the layers 2048 and logits_unbiased, not {}\n  {}",
            where,
            archive.path,
            layer_name(layer),
            kInceptionAdvice);
      }
      if (resize != NetworkResize::tf1) {
        throw ConfigError(
            "{}: {} resizes by itself, as TensorFlow 1 did: /evaluate/resize has to be \"tf1\"",
            where,
            archive.path);
      }
    }
    Features found;
    try {
      found = run(at::zeros({2, 3, 32, 32}, at::kByte));
    } catch (const std::exception& error) {
      throw ConfigError("{}: the network in {} cannot be run: {}\n  {}",
                        where,
                        archive.path,
                        last_message(error),
                        kInceptionAdvice);
    }
    for (const InceptionFeature layer : layers) {
      const at::Tensor& rows = found.at(layer);
      if (rows.dim() == 2 && rows.size(0) == 2 && rows.size(1) == width_of(layer)) continue;
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
  const c10::InferenceMode inference;
  std::map<InceptionFeature, std::vector<at::Tensor>> parts;
  for (int64_t begin = 0; begin < images.size(0); begin += kImagesAtOnce) {
    const int64_t count = std::min(kImagesAtOnce, images.size(0) - begin);
    for (auto& [layer, rows] : impl_->run(images.narrow(0, begin, count))) {
      parts[layer].push_back(std::move(rows));
    }
  }
  Features features;
  for (const auto& [layer, rows] : parts) features[layer] = at::cat(rows);
  return features;
}

}  // namespace dalle2
