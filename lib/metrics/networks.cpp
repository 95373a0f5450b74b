// SPDX-License-Identifier: MIT
#include "metrics/networks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/script.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "base/error.h"
#include "metrics/script/script_archive.h"

namespace dalle2 {
namespace {

/// Where the `to` pixels of a side lie among `from`, in TensorFlow 1: the corner of the first pixel
/// on that of the first, no half pixels.
struct Places {
  at::Tensor low, high;  // [to] int64
  at::Tensor weight;     // [to] float32, of `high`
};

Places places_of(int64_t from, int64_t to, const at::TensorOptions& options) {
  // A product of float32, as there: it decides which pixel is hit.
  const auto scale = static_cast<float>(static_cast<double>(from) / static_cast<double>(to));
  const at::Tensor at = at::arange(to, options.dtype(at::kFloat)) * scale;
  const at::Tensor low = at.to(at::kLong);
  return {low, (low + 1).clamp_max(from - 1), at - low.to(at::kFloat)};
}

at::Tensor resize_like_tensorflow1(const at::Tensor& images, int64_t side) {
  const Places rows = places_of(images.size(2), side, images.options());
  const Places columns = places_of(images.size(3), side, images.options());
  const auto across = [&](const at::Tensor& of) {
    const at::Tensor left = of.index_select(3, columns.low);
    return left + (of.index_select(3, columns.high) - left) * columns.weight;
  };
  const at::Tensor top = across(images.index_select(2, rows.low));
  const at::Tensor bottom = across(images.index_select(2, rows.high));
  return top + (bottom - top) * rows.weight.unsqueeze(1);
}

constexpr int64_t kSide = 299;
/// Pictures, or pairs of them, that a network sees at once: bounds the memory of its activations.
constexpr int64_t kImagesAtOnce = 16;
constexpr const char* kInceptionAdvice =
    "scripts/export_inception.py makes one from the weights that torch-fidelity or pytorch-fid "
    "publish; StyleGAN2-ADA's inception-2015-12-05.pt is one.";

int64_t width_of(InceptionFeature layer) {
  constexpr int64_t kWidths[] = {64, 192, 768, 2048, 1008};  // in the order of the layers
  return kWidths[static_cast<size_t>(layer)];
}

bool has_argument(const torch::jit::Module& module, const std::string& name) {
  const auto method = module.find_method("forward");
  if (!method) return false;
  const auto& arguments = method->function().getSchema().arguments();
  return std::ranges::any_of(arguments,
                             [&](const auto& argument) { return argument.name() == name; });
}

at::Tensor by_channel(const std::vector<double>& values, const at::Device& device) {
  return at::tensor(values, at::kFloat).to(device).view({1, -1, 1, 1});
}

constexpr const char* kLpipsAdvice =
    "scripts/export_lpips.py makes one from the weights that torchvision publishes.";

/// By different ways figures do not compare. @param images [n, c, h, w] float32, values of bytes (0 to 255)
/// @return [n, c, side, side] float32
at::Tensor resize_for_network(const at::Tensor& images, int64_t side, NetworkResize how) {
  D2_CHECK(images.dim() == 4 && images.scalar_type() == at::kFloat, "pictures of float32");
  const std::vector<int64_t> size = {side, side};
  if (how == NetworkResize::tf1) return resize_like_tensorflow1(images, side);
  return how == NetworkResize::antialias
             ? at::_upsample_bilinear2d_aa(images, size, /*align_corners=*/false)
             : at::_upsample_bicubic2d_aa(images, size, /*align_corners=*/false);
}

}  // namespace

at::Tensor to_bytes(const at::Tensor& images) {
  return images.to(at::kFloat).mul(255).add_(0.5).clamp_(0, 255).to(at::kByte);
}

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
      for (auto& [layer, rows] : is_stylegan ? run_stylegan(bytes) : run_ours(bytes))
        parts[layer].push_back(std::move(rows));
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
  std::ranges::sort(impl_->layers);
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
    return in_parts(images.size(0), kImagesAtOnce, [&](int64_t begin, int64_t count) {
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
    return in_parts(one.size(0), kImagesAtOnce, [&](int64_t begin, int64_t count) {
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
