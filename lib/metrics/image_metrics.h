// SPDX-License-Identifier: MIT
// The metrics of a decoder: what an evaluation shows them, and what they make of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "config/decoder/decoder_evaluate_config.h"
#include "dist/process_group.h"
#include "metrics/known_features.h"
#include "metrics/networks.h"

namespace dalle2 {

struct MetricValues {
  /// FID, IS_mean, IS_std, KID_mean, KID_std, KID_standard_error, PR_precision, PR_recall, FD, LPIPS,
  /// CLIP_score: those that are asked for and can be computed.
  std::vector<std::pair<std::string, double>> values;
  std::vector<std::string> faults;  ///< why one is left out, "FID: needs at least 2 images, got 1"
  std::vector<std::string> notes;   ///< what to know of those that were computed
  int64_t images = 0;               ///< pairs that they are computed from
  int64_t left_out = 0;             ///< pairs that are not finite
};

/// A network's file that a config does not name, or that is not there.
struct AbsentNetwork {
  std::string pointer;  ///< "/evaluate/LPIPS/weights_path"
  std::string text;     ///< what is missing and what to do
};
std::vector<AbsentNetwork> absent_networks(const DecoderEvaluateConfig& config);
/// Grey pictures as three equal channels, transparent ones on white. @param images [n, 1, 3 or 4, h, w] @return [n, 3, h, w]
at::Tensor with_three_channels(const at::Tensor& images);

/// One pass of the network over an image serves all metrics. What is kept has the numbers of the
/// images: neither batches nor ranks change a figure.
class ImageMetrics {
 public:
  /// Opens and tries the networks. @param image_side of the pictures, pixels @param seed of KID's
  /// subsets and the order of IS
  /// @throws ConfigError naming the key whose file is missing or wrong
  ImageMetrics(const DecoderEvaluateConfig& config,
               int64_t image_side,
               const at::Device& device,
               int64_t seed);

  /// Pairs of a real image and the one drawn for it. One of which a picture or a feature is not
  /// finite is left out of all metrics, and counted.
  /// @param index [n] int64, numbers of the pairs @param real, generated [n, C, h, w] float32 in
  /// [0, 1], clamped to it
  /// @param caption_cosines [n] float32 on the CPU, by a CLIP, of each generated image and its caption:
  /// NaN without one; undefined without evaluate.clip_score
  /// @return rows of those left out @throws StoppedError after a stop signal, soon
  std::vector<int64_t> update(const at::Tensor& index,
                              const at::Tensor& real,
                              const at::Tensor& generated,
                              const at::Tensor& caption_cosines = {});

  /// Rank 0 takes over what the other ranks have, so that it can compute; these have nothing any
  /// more. All have to call it.
  void gather(ProcessGroup& group);

  /// @throws StoppedError after a stop signal, soon
  MetricValues compute() const;
  /// Begins again: the next update is the first.
  void reset();

  /// "resize tf1, Inception weights 6726825d..., LPIPS vgg a78928a0...": what a figure has to be
  /// compared with.
  std::string description() const;

  /// The real images' features, which are computed once: see KnownFeatures.
  KnownFeatures& known() { return known_; }

 private:
  using RowsByName = std::map<std::string, FeatureRows>;
  /// The name of the features of evaluate.FD, beside those of Inception's layers.
  static constexpr const char* kOwnNetwork = "FD";
  bool compares_features() const { return network_ || encoder_; }
  NamedFeatures features_of(const at::Tensor& bytes) const;
  NamedFeatures features_of_real(const at::Tensor& bytes, const at::Tensor& hashes) const;
  std::string identity() const;
  void compute_network_metrics(MetricValues& found) const;
  void compute_clip_score(MetricValues& found) const;

  DecoderEvaluateConfig config_;
  int64_t seed_;
  at::DeviceType device_type_;
  std::vector<InceptionFeature> layers_;
  std::unique_ptr<FeatureNetwork> network_;         // null: no metric asks for it
  std::unique_ptr<ImageEncoder> encoder_;           // null: FD is not asked for
  std::unique_ptr<PerceptualDistance> perceptual_;  // null: not asked for
  RowsByName real_, generated_;
  FeatureRows distances_;  // [n, 1] of LPIPS, without it zeros: the numbers of the pairs
  FeatureRows cosines_;    // [n, 1] of those with a caption
  FeatureRows hashes_;     // [n, 32] of the real images
  FeatureRows left_out_;   // [n, 1] zeros: the numbers of the pairs left out
  KnownFeatures known_;
};

}  // namespace dalle2
