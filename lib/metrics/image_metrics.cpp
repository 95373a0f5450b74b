// SPDX-License-Identifier: MIT
#include "metrics/image_metrics.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <set>

#include "base/error.h"
#include "metrics/frechet_distance.h"
#include "metrics/inception_score.h"
#include "metrics/kernel_distance.h"
#include "metrics/network_resize.h"
#include "metrics/precision_recall.h"

namespace dalle2 {
namespace {

/// Grey pictures as three equal channels.
at::Tensor with_three_channels(const at::Tensor& images) {
  return images.size(1) == 1 ? images.expand({-1, 3, -1, -1}) : images;
}

/// The name of the features of evaluate.FD, beside those of Inception's layers.
constexpr const char* kOwnNetwork = "FD";

std::string name_of(InceptionFeature layer) {
  return enum_names<InceptionFeature>[static_cast<size_t>(layer)];
}

std::vector<InceptionFeature> layers_of(const DecoderEvaluateConfig& config) {
  std::set<InceptionFeature> layers;
  if (config.FID) layers.insert(config.FID->feature);
  if (config.IS) layers.insert(config.IS->feature);
  if (config.KID) layers.insert(config.KID->feature);
  if (config.PR) layers.insert(config.PR->feature);
  return {layers.begin(), layers.end()};
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
    : config_(config), seed_(seed), layers_(layers_of(config)) {
  if (config.needs_network()) {
    network_ = std::make_unique<FeatureNetwork>(path_of_network(config),
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
  std::vector<std::string> names;
  for (const InceptionFeature layer : layers_) names.push_back(name_of(layer));
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
  hashes_ = {};
}

std::string ImageMetrics::identity() const {
  std::vector<std::string> parts = {"format 1"};
  if (network_) {
    parts.push_back(
        fmt::format("Inception {} {}",
                    network_->sha256(),
                    enum_names<NetworkResize>[static_cast<size_t>(config_.network_resize())]));
    for (const InceptionFeature layer : layers_) parts.push_back("layer " + name_of(layer));
  }
  if (encoder_) parts.push_back(encoder_->identity());
  return fmt::format("{}", fmt::join(parts, "; "));
}

NamedFeatures ImageMetrics::features_of(const at::Tensor& bytes) const {
  NamedFeatures found;
  if (network_) {
    for (auto& [layer, rows] : (*network_)(bytes)) found[name_of(layer)] = rows;
  }
  if (encoder_) found[kOwnNetwork] = (*encoder_)(bytes);
  return found;
}

NamedFeatures ImageMetrics::features_of_real(const at::Tensor& bytes,
                                             const at::Tensor& hashes) const {
  std::vector<int64_t> known, unknown;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    (known_.contains(hashes[i]) ? known : unknown).push_back(i);
  }
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

void ImageMetrics::update(const at::Tensor& index,
                          const at::Tensor& real,
                          const at::Tensor& generated) {
  D2_CHECK(real.size(0) == generated.size(0) && index.numel() == real.size(0), "pairs");
  if (index.numel() == 0) return;
  check_finite(real, index, "real");
  check_finite(generated, index, "generated");  // bytes would not show it
  if (compares_features()) {
    const at::Tensor bytes = to_bytes(with_three_channels(real)).cpu();
    const at::Tensor hashes = hashes_of(bytes);
    const NamedFeatures of_real = features_of_real(bytes, hashes);
    for (const auto& [name, rows] : of_real) real_.at(name).add(index, rows, "real");
    hashes_.add(index, hashes, "real");
    known_.add(hashes, of_real);
    for (const auto& [name, rows] : features_of(to_bytes(with_three_channels(generated)).cpu())) {
      generated_.at(name).add(index, rows, "generated");
    }
  }
  const at::Tensor distances =
      perceptual_ ? (*perceptual_)(with_three_channels(real), with_three_channels(generated))
                  : at::zeros({index.numel()});
  distances_.add(index, distances.unsqueeze(1), "generated");
}

std::vector<at::Tensor> ImageMetrics::state() const {
  std::vector<at::Tensor> tensors;
  const auto append = [&](const FeatureRows& rows) {
    for (const at::Tensor& tensor : rows.state()) tensors.push_back(tensor);
  };
  append(distances_);
  append(hashes_);
  for (const RowsByName* side : {&real_, &generated_}) {
    for (const auto& [name, rows] : *side) append(rows);
  }
  return tensors;
}

void ImageMetrics::merge(const std::vector<at::Tensor>& other) {
  D2_CHECK(other.size() == 4 + 4 * real_.size(), "the state of the same metrics");
  auto next = other.begin();
  const auto take = [&](FeatureRows& rows) {
    rows.merge({next[0], next[1]});
    next += 2;
  };
  take(distances_);
  take(hashes_);
  for (RowsByName* side : {&real_, &generated_}) {
    for (auto& [name, rows] : *side) take(rows);
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
  if (!compares_features()) return;
  NamedFeatures of_real;
  for (const auto& [name, rows] : real_) of_real[name] = rows.rows();
  known_.add(hashes_.rows(), of_real);
}

double ImageMetrics::distance_of(const std::string& name) const {
  return frechet_distance(real_.at(name).rows(), generated_.at(name).rows());
}

MetricValues ImageMetrics::compute() const {
  MetricValues found;
  found.images = distances_.count();
  if (found.images == 0) {
    found.faults.emplace_back(
        "No data to evaluate. Check that your dataloader has shards.");  // the reference's words
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
    const std::string layer = name_of(config_.FID->feature);
    found.values.emplace_back("FID", distance_of(layer));
    const int64_t features = real_.at(layer).rows().size(1);
    if (found.images < features) {
      found.notes.push_back(fmt::format(
          "FID: {} images are fewer than its {} features: compare it with figures of as many images",
          found.images,
          features));
    }
  }
  if (config_.IS) {
    const MeanAndDeviation score = inception_score(
        generated_.at(name_of(config_.IS->feature)).rows(), config_.IS->splits, generator(1));
    found.values.emplace_back("IS_mean", score.mean);
    if (std::isfinite(score.deviation)) found.values.emplace_back("IS_std", score.deviation);
  }
  if (config_.KID && has_at_least(config_.KID->subset_size, "KID", " (subset_size)")) {
    const KidConfig& kid = *config_.KID;
    const KernelDistance distance = kernel_distance(real_.at(name_of(kid.feature)).rows(),
                                                    generated_.at(name_of(kid.feature)).rows(),
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
    const std::string layer = name_of(config_.PR->feature);
    const PrecisionAndRecall both = precision_and_recall(
        real_.at(layer).rows(), generated_.at(layer).rows(), config_.PR->neighborhood);
    found.values.emplace_back("PR_precision", both.precision);
    found.values.emplace_back("PR_recall", both.recall);
  }
  if (config_.FD && has_at_least(2, "FD", "")) {
    found.values.emplace_back("FD", distance_of(kOwnNetwork));
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
    const auto add = [&](const char* metric, const auto& options) {
      if (options) parts.push_back(fmt::format("{} of {}", metric, name_of(options->feature)));
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
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dalle2
