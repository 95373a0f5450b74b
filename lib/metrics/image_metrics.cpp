// SPDX-License-Identifier: MIT
#include "metrics/image_metrics.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string_view>

#include "base/error.h"
#include "metrics/frechet_distance.h"
#include "metrics/inception_score.h"
#include "metrics/kernel_distance.h"
#include "metrics/network_resize.h"
#include "metrics/precision_recall.h"
#include "net/sha256.h"

namespace dalle2 {
namespace {

/// Grey pictures as three equal channels.
at::Tensor with_three_channels(const at::Tensor& images) {
  return images.size(1) == 1 ? images.expand({-1, 3, -1, -1}) : images;
}

std::string hash_of(const at::Tensor& image) {
  const at::Tensor bytes = image.contiguous();
  return sha256({static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()}) +
         fmt::format(" {}x{}", image.size(-2), image.size(-1));
}

std::string path_of_network(const DecoderEvaluateConfig& config) {
  const std::vector<std::string> paths = config.network_paths();
  if (paths.empty()) {
    throw ConfigError(
        "/evaluate/{}/feature_extractor_weights_path: expected the file of the Inception network, got "
        "null\n  scripts/export_inception.py makes one out of the weights that torch-fidelity or "
        "pytorch-fid publish.",
        config.FID   ? "FID"
        : config.IS  ? "IS"
        : config.KID ? "KID"
                     : "PR");
  }
  return paths.front();
}

std::string where_of_network(const DecoderEvaluateConfig& config) {
  const auto names_it = [](const auto& metric) {
    return metric && metric->feature_extractor_weights_path;
  };
  return fmt::format("/evaluate/{}/feature_extractor_weights_path",
                     names_it(config.FID)   ? "FID"
                     : names_it(config.IS)  ? "IS"
                     : names_it(config.KID) ? "KID"
                                            : "PR");
}

void check_finite(const at::Tensor& images, const at::Tensor& index, const char* of_what) {
  const at::Tensor finite = images.flatten(1).isfinite().all(1).cpu();
  if (finite.all().item<bool>()) return;
  const int64_t row = finite.logical_not().nonzero()[0].item<int64_t>();
  throw DataError(
      "the {} image {} is not finite (NaN or infinite)", of_what, index[row].item<int64_t>());
}

/// A tensor as bytes of any length, for ranks whose shapes differ.
std::string pack(const at::Tensor& tensor) {
  const at::Tensor rows = tensor.contiguous();
  return {static_cast<const char*>(rows.const_data_ptr()), rows.nbytes()};
}

}  // namespace

ImageMetrics::ImageMetrics(const DecoderEvaluateConfig& config,
                           int64_t image_side,
                           const at::Device& device,
                           int64_t seed)
    : config_(config), seed_(seed) {
  if (config.FID) layers_.push_back(config.FID->feature);
  if (config.IS) layers_.push_back(config.IS->feature);
  if (config.KID) layers_.push_back(config.KID->feature);
  if (config.PR) layers_.push_back(config.PR->feature);
  if (config.needs_network()) {
    network_ = std::make_unique<FeatureNetwork>(path_of_network(config),
                                                where_of_network(config),
                                                layers_,
                                                config.network_resize(),
                                                device);
  }
  if (config.LPIPS) {
    if (!config.LPIPS->weights_path) {
      throw ConfigError(
          "/evaluate/LPIPS/weights_path: expected the file of its network, got null\n"
          "  scripts/export_lpips.py makes one out of the weights that torchvision publishes.");
    }
    perceptual_ = std::make_unique<PerceptualDistance>(*config.LPIPS->weights_path,
                                                       "/evaluate/LPIPS/weights_path",
                                                       config.LPIPS->net_type,
                                                       image_side,
                                                       device);
  }
  reset();
}

void ImageMetrics::reset() {
  real_.clear();
  generated_.clear();
  for (const InceptionFeature layer : layers_) {
    real_[layer];
    generated_[layer];
  }
  distances_ = {};
}

Features ImageMetrics::features_of_real(const at::Tensor& bytes) {
  std::vector<std::string> hashes;
  std::vector<int64_t> unknown;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    hashes.push_back(hash_of(bytes[i]));
    if (!known_.contains(hashes.back())) unknown.push_back(i);
  }
  if (!unknown.empty()) {
    const Features found = (*network_)(bytes.index_select(0, at::tensor(unknown, at::kLong)));
    for (size_t place = 0; place < unknown.size(); ++place) {
      auto& rows = known_[hashes[static_cast<size_t>(unknown[place])]];
      for (const auto& [layer, features] : found) {
        rows[layer] = features[static_cast<int64_t>(place)].clone();
      }
    }
  }
  Features all;
  for (const InceptionFeature layer : layers_) {
    std::vector<at::Tensor> rows;
    for (const std::string& hash : hashes) rows.push_back(known_.at(hash).at(layer));
    all[layer] = at::stack(rows);
  }
  return all;
}

void ImageMetrics::update(const at::Tensor& index,
                          const at::Tensor& real,
                          const at::Tensor& generated) {
  D2_CHECK(real.size(0) == generated.size(0) && index.numel() == real.size(0), "pairs");
  if (index.numel() == 0) return;
  check_finite(real, index, "real");
  check_finite(generated, index, "generated");  // bytes would not show it
  const at::Tensor real_bytes = to_bytes(with_three_channels(real)).cpu();
  const at::Tensor drawn_bytes = to_bytes(with_three_channels(generated)).cpu();
  if (network_) {
    for (const auto& [layer, rows] : features_of_real(real_bytes)) {
      real_[layer].add(index, rows, "real");
    }
    for (const auto& [layer, rows] : (*network_)(drawn_bytes)) {
      generated_[layer].add(index, rows, "generated");
    }
  }
  const at::Tensor distances =
      perceptual_ ? (*perceptual_)(with_three_channels(real), with_three_channels(generated))
                  : at::zeros({index.numel()});
  distances_.add(index, distances.unsqueeze(1), "generated");
}

std::vector<at::Tensor> ImageMetrics::state() const {
  std::vector<at::Tensor> tensors = distances_.state();
  for (const RowsByLayer* side : {&real_, &generated_}) {
    for (const auto& [layer, rows] : *side) {
      for (const at::Tensor& tensor : rows.state()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

void ImageMetrics::merge(const std::vector<at::Tensor>& other) {
  D2_CHECK(other.size() == 2 + 4 * real_.size(), "the state of the same metrics");
  distances_.merge({other[0], other[1]});
  size_t place = 2;
  for (RowsByLayer* side : {&real_, &generated_}) {
    for (auto& [layer, rows] : *side) {
      rows.merge({other[place], other[place + 1]});
      place += 2;
    }
  }
}

void ImageMetrics::gather(ProcessGroup& group) {
  if (group.is_alone()) return;
  const std::vector<at::Tensor> own = state();
  std::vector<std::vector<at::Tensor>> all(static_cast<size_t>(group.size()));
  for (const at::Tensor& tensor : own) {
    const int64_t width = tensor.dim() == 2 ? tensor.size(1) : 0;
    const auto shapes =
        group.exchange({tensor.size(0), tensor.dim(), width}, "shape of the features");
    const std::vector<std::string> parts = group.gather_texts(pack(tensor), "features");
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const auto& shape = shapes[rank];
      at::Tensor theirs = shape[1] == 2 ? at::empty({shape[0], shape[2]}, tensor.options())
                                        : at::empty({shape[0]}, tensor.options());
      D2_CHECK(theirs.nbytes() == parts[rank].size(), "features of another size than told");
      std::memcpy(theirs.mutable_data_ptr(), parts[rank].data(), parts[rank].size());
      all[rank].push_back(std::move(theirs));
    }
  }
  reset();
  for (const auto& tensors : all) merge(tensors);
}

MetricValues ImageMetrics::compute() const {
  MetricValues found;
  found.images = distances_.count();
  if (found.images == 0) {
    found.faults.emplace_back(
        "No data to evaluate. Check that your dataloader has shards.");  // the reference's words
    return found;
  }
  if (network_) compute_network_metrics(found);
  if (config_.LPIPS) {
    const at::Tensor distances = distances_.rows().to(at::kDouble);
    found.values.emplace_back(
        "LPIPS",
        (config_.LPIPS->reduction == LpipsReduction::sum ? distances.sum() : distances.mean())
            .item<double>());
  }
  return found;
}

void ImageMetrics::compute_network_metrics(MetricValues& found) const {
  const auto has_at_least = [&](int64_t least, const char* metric, const char* why) {
    if (found.images >= least) return true;
    found.faults.push_back(
        fmt::format("{}: needs at least {} images{}, got {}", metric, least, why, found.images));
    return false;
  };
  const auto generator = [this](uint64_t purpose) {
    return at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed_) * 16 + purpose);
  };
  if (config_.FID && has_at_least(2, "FID", "")) {
    const InceptionFeature layer = config_.FID->feature;
    found.values.emplace_back(
        "FID", frechet_distance(real_.at(layer).rows(), generated_.at(layer).rows()));
  }
  if (config_.IS) {
    const MeanAndDeviation score = inception_score(
        generated_.at(config_.IS->feature).rows(), config_.IS->splits, generator(1));
    found.values.emplace_back("IS_mean", score.mean);
    if (std::isfinite(score.deviation)) found.values.emplace_back("IS_std", score.deviation);
  }
  if (config_.KID && has_at_least(config_.KID->subset_size, "KID", " (subset_size)")) {
    const KidConfig& kid = *config_.KID;
    const KernelDistance distance = kernel_distance(real_.at(kid.feature).rows(),
                                                    generated_.at(kid.feature).rows(),
                                                    {.subsets = kid.subsets,
                                                     .subset_size = kid.subset_size,
                                                     .degree = kid.degree,
                                                     .gamma = kid.gamma,
                                                     .coef = kid.coef},
                                                    generator(2));
    found.values.emplace_back("KID_mean", distance.mean);
    found.values.emplace_back("KID_std", distance.deviation);
    if (std::isfinite(distance.standard_error)) {
      found.values.emplace_back("KID_standard_error", distance.standard_error);
    }
  }
  if (config_.PR && has_at_least(config_.PR->neighborhood + 1, "PR", " (neighborhood + 1)")) {
    const InceptionFeature layer = config_.PR->feature;
    const PrecisionAndRecall both = precision_and_recall(
        real_.at(layer).rows(), generated_.at(layer).rows(), config_.PR->neighborhood);
    found.values.emplace_back("PR_precision", both.precision);
    found.values.emplace_back("PR_recall", both.recall);
  }
}

std::string ImageMetrics::description() const {
  constexpr size_t kDigits = 16;
  std::vector<std::string> parts;
  if (network_) {
    parts.push_back(
        fmt::format("resize {}, Inception weights {}",
                    enum_names<NetworkResize>[static_cast<size_t>(config_.network_resize())],
                    network_ -> sha256().substr(0, kDigits)));
  }
  if (perceptual_) {
    parts.push_back(fmt::format("LPIPS {} {}",
                                enum_names<LpipsNet>[static_cast<size_t>(config_.LPIPS->net_type)],
                                perceptual_ -> sha256().substr(0, kDigits)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dalle2
