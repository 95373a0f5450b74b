// SPDX-License-Identifier: MIT
// What the metrics of a decoder make of the features; how these come is in image_metrics.cpp.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "metrics/frechet_distance.h"
#include "metrics/image_metrics.h"
#include "metrics/inception_score.h"
#include "metrics/kernel_distance.h"
#include "metrics/precision_recall.h"

namespace dalle2 {

double ImageMetrics::distance_of(const std::string& name) const {
  return frechet_distance(real_.at(name).rows(), generated_.at(name).rows());
}

MetricValues ImageMetrics::compute() const {
  MetricValues found;
  found.images = distances_.count();
  tell_left_out(found);
  if (found.images == 0) {
    found.faults.emplace_back(found.left_out > 0
                                  ? "not one pair is finite"
                                  : "No data to evaluate. Check that your dataloader has "
                                    "shards.");  // the reference's words
    return found;
  }
  if (compares_features()) compute_network_metrics(found);
  if (config_.LPIPS) {
    const at::Tensor distances = distances_.rows().to(at::kDouble);
    found.values.emplace_back(
        "LPIPS",
        (config_.LPIPS->reduction == LpipsReduction::sum ? distances.sum() : distances.mean())
            .item<double>());
  }
  if (config_.clip_score) compute_clip_score(found);
  return found;
}

/// Hessel et al. 2021, arXiv 2104.08718, with the factor of torchmetrics.
void ImageMetrics::compute_clip_score(MetricValues& found) const {
  constexpr double kFactor = 100;
  const int64_t count = cosines_.count();
  if (count == 0) {
    found.faults.emplace_back("CLIP_score: not one sample has a caption");
    return;
  }
  const double mean = cosines_.rows().to(at::kDouble).mean().item<double>();
  found.values.emplace_back("CLIP_score", std::max(kFactor * mean, 0.0));
  if (count < found.images) {
    found.notes.push_back(fmt::format(
        "CLIP_score: of {} images, as {} have no caption", count, found.images - count));
  }
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
  const auto add_distance = [&](const char* metric, const std::string& layer) {
    found.values.emplace_back(metric, distance_of(layer));
    const int64_t features = real_.at(layer).rows().size(1);
    if (found.images >= features) return;
    found.notes.push_back(
        fmt::format("{}: the {} images are fewer than its {} features: compare it only with "
                    "figures of equally many images",
                    metric,
                    found.images,
                    features));
  };
  if (config_.FID && has_at_least(2, "FID", ""))
    add_distance("FID", layer_name(config_.FID->feature));
  // The score of a part is 1 for one picture, whatever it shows.
  if (config_.IS && has_at_least(2 * config_.IS->splits, "IS", " (2 for each of the splits)")) {
    const MeanAndDeviation score = inception_score(
        generated_.at(layer_name(config_.IS->feature)).rows(), config_.IS->splits, generator(1));
    found.values.emplace_back("IS_mean", score.mean);
    if (std::isfinite(score.deviation)) found.values.emplace_back("IS_std", score.deviation);
  }
  if (config_.KID && has_at_least(config_.KID->subset_size, "KID", " (subset_size)")) {
    const KidConfig& kid = *config_.KID;
    const KernelDistance distance = kernel_distance(real_.at(layer_name(kid.feature)).rows(),
                                                    generated_.at(layer_name(kid.feature)).rows(),
                                                    {.subsets = kid.subsets,
                                                     .subset_size = kid.subset_size,
                                                     .degree = kid.degree,
                                                     .gamma = kid.gamma,
                                                     .coef = kid.coef},
                                                    generator(2));
    if (std::isfinite(distance.mean) && std::isfinite(distance.deviation)) {
      found.values.emplace_back("KID_mean", distance.mean);
      found.values.emplace_back("KID_std", distance.deviation);
      if (std::isfinite(distance.standard_error)) {
        found.values.emplace_back("KID_standard_error", distance.standard_error);
      }
    } else {
      found.faults.emplace_back("KID: is not finite: look at gamma, coef and degree");
    }
  }
  if (config_.PR && has_at_least(config_.PR->neighborhood + 1, "PR", " (neighborhood + 1)")) {
    const std::string layer = layer_name(config_.PR->feature);
    const PrecisionAndRecall both = precision_and_recall(
        real_.at(layer).rows(), generated_.at(layer).rows(), config_.PR->neighborhood);
    found.values.emplace_back("PR_precision", both.precision);
    found.values.emplace_back("PR_recall", both.recall);
  }
  if (config_.FD && has_at_least(2, "FD", "")) add_distance("FD", kOwnNetwork);
}

std::string ImageMetrics::description() const {
  constexpr size_t kDigits = 16;
  std::vector<std::string> parts;
  if (network_) {
    parts.push_back(
        fmt::format("resize {}, Inception weights {}",
                    enum_names<NetworkResize>[static_cast<size_t>(config_.network_resize())],
                    network_ -> sha256().substr(0, kDigits)));
    const auto add = [&](const char* metric, const auto& options) {
      if (options) parts.push_back(fmt::format("{} of {}", metric, layer_name(options->feature)));
    };
    add("FID", config_.FID);
    add("IS", config_.IS);
    add("KID", config_.KID);
    add("PR", config_.PR);
  }
  if (encoder_) parts.push_back(encoder_->description());
  if (perceptual_) {
    parts.push_back(fmt::format("LPIPS {} {}",
                                enum_names<LpipsNet>[static_cast<size_t>(config_.LPIPS->net_type)],
                                perceptual_ -> sha256().substr(0, kDigits)));
  }
  if (config_.clip_score && config_.clip_score->sha256())
    parts.push_back(fmt::format("CLIP {}", config_.clip_score->sha256()->substr(0, kDigits)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dalle2
