// SPDX-License-Identifier: MIT
// `evaluate` of a decoder config (config.md, section 7): the arguments of torchmetrics' classes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/count_limits.h"
#include "config/reflect.h"
#include "config/types.h"

namespace dalle2 {

/// The layer of the Inception network whose features are compared.
enum class InceptionFeature { k64, k192, k768, k2048, logits_unbiased };
template <>
inline constexpr std::array enum_names<InceptionFeature> = {
    "64", "192", "768", "2048", "logits_unbiased"};
enum class LpipsNet { vgg, alex, squeeze };
template <>
inline constexpr std::array enum_names<LpipsNet> = {"vgg", "alex", "squeeze"};

enum class LpipsReduction { mean, sum, none };
template <>
inline constexpr std::array enum_names<LpipsReduction> = {"mean", "sum", "none"};

/// How a picture is brought to the side that the network takes.
enum class NetworkResize {
  tf1,        ///< as TensorFlow 1, pytorch-fid and torch-fidelity: bilinear, no half pixels
  antialias,  ///< as torchmetrics since 1.8: bilinear, smoothed
  clean,      ///< as clean-fid: Pillow's bicubic
};
template <>
inline constexpr std::array enum_names<NetworkResize> = {"tf1", "antialias", "clean"};

struct FidConfig {
  static constexpr const char* kDoc = "Fréchet inception distance.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::k2048;
  bool reset_real_features = true;
  bool normalize = false;
  std::vector<int64_t> input_img_size = {3, 299, 299};
  std::optional<std::string> feature_extractor_weights_path;
  bool antialias = true;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(reset_real_features, "Forget the real images' features on a reset.");
    D2_FIELD(normalize, "Images are floats in [0, 1]; leave false, they are bytes here.");
    D2_FIELD(input_img_size,
             "Channels, height and width the network expects.",
             within(1, most::kImageSide).entries(3));
    D2_FIELD(feature_extractor_weights_path, "File with the network's weights.", not_empty());
    D2_FIELD(antialias, "Smooth images when they are shrunk for the network.");
  }
};

struct InceptionScoreConfig {
  static constexpr const char* kDoc = "Inception score.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::logits_unbiased;
  int64_t splits = 10;
  bool normalize = false;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(splits,
             "Parts the samples are divided into for mean and deviation.",
             within(1, most::kBatch));
    D2_FIELD(normalize, "Images are floats in [0, 1]; leave false, they are bytes here.");
  }
};

struct KidConfig {
  static constexpr const char* kDoc = "Kernel inception distance.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::k2048;
  int64_t subsets = 100;
  int64_t subset_size = 1000;
  int64_t degree = 3;
  std::optional<double> gamma;
  double coef = 1.0;
  bool reset_real_features = true;
  bool normalize = false;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(subsets, "Subsets that are drawn.", within(1, most::kBatch));
    D2_FIELD(subset_size,
             "Samples of a subset; at most `evaluate.n_evaluation_samples`.",
             within(1, most::kBatch));
    D2_FIELD(degree, "Degree of the polynomial kernel.", within(1, most::kLayers));
    D2_FIELD(gamma, "Scale of the kernel's product; null for 1 / features.", above(0));
    D2_FIELD(coef, "Constant of the kernel.", above(0));
    D2_FIELD(reset_real_features, "Forget the real images' features on a reset.");
    D2_FIELD(normalize, "Images are floats in [0, 1]; leave false, they are bytes here.");
  }
};

struct LpipsConfig {
  static constexpr const char* kDoc = "Learned perceptual similarity of pairs of images.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  LpipsNet net_type = LpipsNet::alex;
  LpipsReduction reduction = LpipsReduction::mean;
  bool normalize = false;

  void fields(auto& f) {
    D2_FIELD(net_type, "Network whose features are compared.");
    D2_FIELD(reduction, "How the pairs' distances become one figure.");
    D2_FIELD(normalize, "Images come in [0, 1] instead of [-1, 1].");
  }
};

struct DecoderEvaluateConfig {
  static constexpr const char* kDoc = "Metrics over samples; `{}` computes none.";
  static constexpr const char* kMetricsHint =
      "the metrics are a later part; set it to null and compare samples by eye";

  int64_t n_evaluation_samples = 1000;
  // Keys as torchmetrics and the reference spell them.
  std::optional<FidConfig> FID;
  std::optional<InceptionScoreConfig> IS;
  std::optional<KidConfig> KID;
  std::optional<LpipsConfig> LPIPS;

  void fields(auto& f) {
    D2_FIELD(n_evaluation_samples, "Images drawn for the metrics.", within(1, most::kEpochs));
    D2_FIELD(FID,
             "Arguments of the Fréchet inception distance; null switches it off.",
             not_yet(kMetricsHint));
    D2_FIELD(IS, "Arguments of the inception score; null switches it off.", not_yet(kMetricsHint));
    D2_FIELD(KID,
             "Arguments of the kernel inception distance; null switches it off.",
             not_yet(kMetricsHint));
    D2_FIELD(LPIPS, "Arguments of LPIPS; null switches it off.", not_yet(kMetricsHint));
    f.check(!KID || KID->subset_size <= n_evaluation_samples,
            "KID/subset_size",
            "must not exceed n_evaluation_samples (" + std::to_string(n_evaluation_samples) +
                "), got " + std::to_string(KID.value_or(KidConfig{}).subset_size));
  }
};

}  // namespace dalle2
