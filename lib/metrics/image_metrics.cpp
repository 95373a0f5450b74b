// SPDX-License-Identifier: MIT
#include "metrics/image_metrics.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "metrics/feature_metrics.h"

namespace dalle2 {

at::Tensor with_three_channels(const at::Tensor& images) {
  if (images.size(1) != 4) return images.size(1) == 1 ? images.expand({-1, 3, -1, -1}) : images;
  const at::Tensor alpha = images.narrow(1, 3, 1);
  return images.narrow(1, 0, 3) * alpha + (1 - alpha);
}

namespace {

std::vector<InceptionFeature> layers_of(const DecoderEvaluateConfig& config) {
  std::set<InceptionFeature> layers;
  config.network_metrics([&](const char*, const auto& metric) { layers.insert(metric.feature); });
  return {layers.begin(), layers.end()};
}

std::string where_of_network(const DecoderEvaluateConfig& config) {
  const bool is_named = !config.network_paths().empty();
  std::string where;
  config.network_metrics([&](const char* name, const auto& metric) {
    if (where.empty() && (!is_named || metric.feature_extractor_weights_path)) where = name;
  });
  return fmt::format("/evaluate/{}/feature_extractor_weights_path", where);
}

/// @param values [n, ...] @return [n] bool on the CPU
at::Tensor finite_rows(const at::Tensor& values) {
  return values.flatten(1).isfinite().all(1).cpu();
}

at::Tensor finite_rows(const NamedFeatures& features, int64_t rows) {
  at::Tensor finite = at::ones({rows}, at::kBool);
  for (const auto& [name, values] : features) finite = finite.logical_and(finite_rows(values));
  return finite;
}

NamedFeatures rows_of(const NamedFeatures& features, const at::Tensor& chosen) {
  NamedFeatures rows;
  for (const auto& [name, values] : features) rows[name] = values.index_select(0, chosen);
  return rows;
}

}  // namespace

std::vector<AbsentNetwork> absent_networks(const DecoderEvaluateConfig& config) {
  std::vector<AbsentNetwork> absent;
  const auto look = [&](const std::string& where,
                        const std::optional<std::string>& path,
                        const char* what,
                        const char* advice) {
    std::error_code ignored;
    if (path && std::filesystem::is_regular_file(*path, ignored)) return;
    absent.push_back({where,
                      fmt::format("{}\n  {}",
                                  path ? fmt::format("there is no file {}", printable(*path))
                                       : fmt::format("expected the file of {}, got null", what),
                                  advice)});
  };
  if (config.needs_network()) {
    const std::set<std::string> paths = config.network_paths();
    look(where_of_network(config),
         paths.empty() ? std::nullopt : std::make_optional(*paths.begin()),
         "the Inception network",
         "scripts/export_inception.py makes one from the weights that torch-fidelity or "
         "pytorch-fid publish.");
  }
  if (config.FD) {
    look("/evaluate/FD/feature_extractor_weights_path",
         config.FD->feature_extractor_weights_path,
         "the network",
         kEncoderAdvice);
  }
  if (config.LPIPS) {
    look("/evaluate/LPIPS/weights_path",
         config.LPIPS->weights_path,
         "its network",
         "scripts/export_lpips.py makes one from the weights that torchvision publishes.");
  }
  return absent;
}

ImageMetrics::ImageMetrics(const DecoderEvaluateConfig& config,
                           int64_t image_side,
                           const at::Device& device,
                           int64_t seed)
    : config_(config), seed_(seed), device_type_(device.type()), layers_(layers_of(config)) {
  std::vector<std::string> absent;
  for (const auto& [where, text] : absent_networks(config)) absent.push_back(where + ": " + text);
  if (!absent.empty()) throw ConfigError("{}", fmt::join(absent, "\n"));
  if (config.needs_network()) {
    network_ = std::make_unique<FeatureNetwork>(*config.network_paths().begin(),
                                                where_of_network(config),
                                                layers_,
                                                config.network_resize(),
                                                device);
  }
  if (config.FD) {
    encoder_ = std::make_unique<ImageEncoder>(
        *config.FD, "/evaluate/FD/feature_extractor_weights_path", device);
  }
  if (config.LPIPS) {
    perceptual_ = std::make_unique<PerceptualDistance>(*config.LPIPS->weights_path,
                                                       "/evaluate/LPIPS/weights_path",
                                                       config.LPIPS->net_type,
                                                       image_side,
                                                       device);
  }
  std::vector<std::string> names;
  for (const InceptionFeature layer : layers_) names.push_back(layer_name(layer));
  if (encoder_) names.emplace_back(kOwnNetwork);
  for (const std::string& name : names) {
    real_[name];
    generated_[name];
  }
  known_ = KnownFeatures(std::move(names), identity());
}

void ImageMetrics::reset() {
  for (RowsByName* side : {&real_, &generated_}) {
    for (auto& [name, rows] : *side) rows = {};
  }
  distances_ = {};
  cosines_ = {};
  hashes_ = {};
  left_out_ = {};
}

std::string ImageMetrics::identity() const {
  // Another device, or LibTorch, gives the last digits otherwise: a bias where one side is cached.
  std::vector<std::string> parts = {
      fmt::format("format 2; float32 on {}, LibTorch {}",
                  c10::DeviceTypeName(device_type_, /*lower_case=*/true),
                  TORCH_VERSION)};
  if (network_) {
    parts.push_back(
        fmt::format("Inception {} {}",
                    network_->sha256(),
                    enum_names<NetworkResize>[static_cast<size_t>(config_.network_resize())]));
    for (const InceptionFeature layer : layers_) parts.push_back("layer " + layer_name(layer));
  }
  if (encoder_) parts.push_back(encoder_->identity());
  return fmt::format("{}", fmt::join(parts, "; "));
}

NamedFeatures ImageMetrics::features_of(const at::Tensor& bytes) const {
  NamedFeatures found;
  if (network_) {
    for (auto& [layer, rows] : (*network_)(bytes)) found[layer_name(layer)] = rows;
  }
  if (encoder_) found[kOwnNetwork] = (*encoder_)(bytes);
  return found;
}

NamedFeatures ImageMetrics::features_of_real(const at::Tensor& bytes,
                                             const at::Tensor& hashes) const {
  std::vector<int64_t> known, unknown;
  for (int64_t i = 0; i < bytes.size(0); ++i)
    (known_.contains(hashes[i]) ? known : unknown).push_back(i);
  if (unknown.empty()) return known_.at(hashes);
  const at::Tensor new_rows = at::tensor(unknown, at::kLong);
  NamedFeatures found = features_of(bytes.index_select(0, new_rows));
  if (known.empty()) return found;
  const at::Tensor old_rows = at::tensor(known, at::kLong);
  for (const auto& [name, rows] : known_.at(hashes.index_select(0, old_rows))) {
    at::Tensor all = at::empty({bytes.size(0), rows.size(1)}, rows.options());
    all.index_copy_(0, old_rows, rows);
    found.at(name) = all.index_copy_(0, new_rows, found.at(name));
  }
  return found;
}

std::vector<int64_t> ImageMetrics::update(const at::Tensor& index,
                                          const at::Tensor& real,
                                          const at::Tensor& generated,
                                          const at::Tensor& caption_cosines) {
  D2_CHECK(real.size(0) == generated.size(0) && index.numel() == real.size(0), "pairs");
  at::Tensor finite = finite_rows(real).logical_and(finite_rows(generated));  // [n]
  const at::Tensor whole = finite.nonzero().squeeze(1);
  NamedFeatures of_real, of_generated;
  at::Tensor hashes, distances = at::zeros({whole.numel()});
  if (whole.numel() > 0) {
    const auto shown = [&](const at::Tensor& images) {
      return with_three_channels(images).index_select(0, whole.to(images.device()));
    };
    if (compares_features()) {
      const at::Tensor bytes = to_bytes(shown(real)).cpu();
      hashes = hashes_of(bytes);
      of_real = features_of_real(bytes, hashes);
      of_generated = features_of(to_bytes(shown(generated)).cpu());
    }
    if (perceptual_) distances = (*perceptual_)(shown(real), shown(generated));
  }
  finite.index_copy_(0,
                     whole,
                     finite_rows(of_real, whole.numel())
                         .logical_and(finite_rows(of_generated, whole.numel()))
                         .logical_and(distances.isfinite()));
  const at::Tensor good = finite.index_select(0, whole).nonzero().squeeze(1);  // rows of `whole`
  const at::Tensor numbers = index.index_select(0, whole).index_select(0, good);
  distances_.add(numbers, distances.index_select(0, good).unsqueeze(1));
  if (caption_cosines.defined()) {
    const at::Tensor cosines = caption_cosines.index_select(0, whole).index_select(0, good);
    const at::Tensor has_caption = cosines.isfinite().nonzero().squeeze(1);
    cosines_.add(numbers.index_select(0, has_caption),
                 cosines.index_select(0, has_caption).unsqueeze(1));
  }
  if (good.numel() > 0 && compares_features()) {
    hashes = hashes.index_select(0, good);
    of_real = rows_of(of_real, good);
    hashes_.add(numbers, hashes);
    known_.add(hashes, of_real);
    for (const auto& [name, rows] : of_real) real_.at(name).add(numbers, rows);
    for (const auto& [name, rows] : rows_of(of_generated, good))
      generated_.at(name).add(numbers, rows);
  }
  const at::Tensor bad = finite.logical_not().nonzero().squeeze(1);
  left_out_.add(index.index_select(0, bad), at::zeros({bad.numel(), 1}));
  return {bad.const_data_ptr<int64_t>(), bad.const_data_ptr<int64_t>() + bad.numel()};
}

void ImageMetrics::gather(ProcessGroup& group) {
  if (group.is_alone()) return;
  const ProcessGroup::BusyScope busy(group, "gathering the features");
  distances_.gather(group, "distances");
  left_out_.gather(group, "pairs left out");
  if (config_.clip_score) cosines_.gather(group, "cosines of captions");
  hashes_.gather(group, "sums of real pictures");
  for (auto& [name, rows] : real_) rows.gather(group, "features of real pictures");
  for (auto& [name, rows] : generated_) rows.gather(group, "features of generated pictures");
  if (!compares_features() || hashes_.count() == 0) return;
  NamedFeatures of_real;
  for (const auto& [name, rows] : real_) of_real[name] = rows.rows();
  known_.add(hashes_.rows(), of_real);
}

MetricValues ImageMetrics::compute() const {
  MetricValues found;
  found.images = distances_.count();
  found.left_out = left_out_.count();
  if (found.left_out > 0) {
    found.notes.push_back(fmt::format(
        "{} of {} pairs are left out, because a picture, its features or the distance of "
        "the two is not finite (NaN or infinite)",
        found.left_out,
        found.left_out + found.images));
  }
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
    const at::Tensor real = real_.at(layer).rows();
    found.values.emplace_back(metric, frechet_distance(real, generated_.at(layer).rows()));
    const int64_t features = real.size(1);
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
      if (std::isfinite(distance.standard_error))
        found.values.emplace_back("KID_standard_error", distance.standard_error);
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
    config_.network_metrics([&](const char* name, const auto& metric) {
      parts.push_back(fmt::format("{} of {}", name, layer_name(metric.feature)));
    });
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
