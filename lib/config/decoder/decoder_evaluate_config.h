// SPDX-License-Identifier: MIT
// `evaluate` of a decoder config: the arguments of torchmetrics' classes.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/reading/reflect.h"
#include "config/shared/clip_config.h"

namespace dalle2 {

/// The layer of the Inception network whose features are compared.
enum class InceptionFeature { k64, k192, k768, k2048, logits_unbiased };
template <>
inline constexpr std::array enum_names<InceptionFeature> = {
    "64", "192", "768", "2048", "logits_unbiased"};
D2_ENUM(LpipsNet, vgg, alex, squeeze);

D2_ENUM(LpipsReduction, mean, sum);

/// How a picture is brought to the side that the network takes.
enum class NetworkResize {
  tf1,        ///< as TensorFlow 1, pytorch-fid and torch-fidelity: bilinear, no half pixels
  antialias,  ///< as torchmetrics since 1.8: bilinear, smoothed
  clean,      ///< as clean-fid: Pillow's bicubic
};
template <>
inline constexpr std::array enum_names<NetworkResize> = {"tf1", "antialias", "clean"};

namespace detail {
inline constexpr const char* kNetworkDoc =
    "TorchScript file of the Inception network, for one of the metrics; they share it. "
    "`scripts/export_inception.py` makes it.";
inline constexpr const char* kNormalizeDoc = "Must be false: pictures are bytes.";
inline constexpr const char* kNormalizeRule =
    "must be false, got true: the images are bytes, whose range is known";
inline constexpr const char* kResetDoc =
    "No effect: the features of real pictures are cached by content, so the cache never holds "
    "those of other pictures.";
}  // namespace detail

struct FidConfig {
  static constexpr const char* kDoc = "Fréchet inception distance.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::k2048;
  bool reset_real_features = true;
  bool normalize = false;
  std::vector<int64_t> input_img_size = {3, 299, 299};
  std::optional<std::string> feature_extractor_weights_path;
  std::optional<bool> antialias;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network; must not be `logits_unbiased`.");
    D2_FIELD(reset_real_features, detail::kResetDoc);
    D2_FIELD(normalize, detail::kNormalizeDoc);
    D2_FIELD(input_img_size, "Must be [3, 299, 299].", within(1, most::kImageSide).entries(3));
    D2_FIELD(feature_extractor_weights_path, detail::kNetworkDoc, not_empty());
    D2_FIELD(antialias, "True: `resize` is `antialias`; false: `tf1`.");
    f.check(input_img_size == std::vector<int64_t>{3, 299, 299},
            "input_img_size",
            "must be [3, 299, 299], which is what the network takes");
    f.check(!normalize, "normalize", detail::kNormalizeRule);
    f.check(feature != InceptionFeature::logits_unbiased,
            "feature",
            "must be one of 64 192 768 2048, got \"logits_unbiased\"");
  }
};

struct InceptionScoreConfig {
  static constexpr const char* kDoc = "Inception score.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::logits_unbiased;
  int64_t splits = 10;
  bool normalize = false;
  std::optional<std::string> feature_extractor_weights_path;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(
        splits, "Parts of the samples, for mean and standard deviation.", within(1, most::kBatch));
    D2_FIELD(normalize, detail::kNormalizeDoc);
    D2_FIELD(feature_extractor_weights_path, detail::kNetworkDoc, not_empty());
    f.check(!normalize, "normalize", detail::kNormalizeRule);
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
  std::optional<std::string> feature_extractor_weights_path;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(subsets, "Random subsets of the samples.", within(1, most::kBatch));
    D2_FIELD(subset_size,
             "Samples in a subset; at most `evaluate.n_evaluation_samples`.",
             within(2, most::kBatch));
    D2_FIELD(degree, "Degree of the polynomial kernel.", within(1, most::kLayers));
    D2_FIELD(gamma, "Factor of the scalar product; null for 1 / (number of features).", above(0));
    D2_FIELD(coef, "Constant term of the kernel.", above(0));
    D2_FIELD(reset_real_features, detail::kResetDoc);
    D2_FIELD(normalize, detail::kNormalizeDoc);
    D2_FIELD(feature_extractor_weights_path, detail::kNetworkDoc, not_empty());
    f.check(!normalize, "normalize", detail::kNormalizeRule);
  }
};

struct PrecisionRecallConfig {
  static constexpr const char* kDoc =
      "Extension: improved precision and recall (Kynkäänniemi et al. 2019).";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  InceptionFeature feature = InceptionFeature::k2048;
  int64_t neighborhood = 3;
  std::optional<std::string> feature_extractor_weights_path;

  void fields(auto& f) {
    D2_FIELD(feature, "Layer of the Inception network.");
    D2_FIELD(neighborhood,
             "k: the ball around a picture reaches to its k-th nearest other picture.",
             within(1, most::kBatch));
    D2_FIELD(feature_extractor_weights_path, detail::kNetworkDoc, not_empty());
  }
};

struct FrechetDistanceConfig {
  static constexpr const char* kDoc =
      "Extension: Fréchet distance of the features of your own network, such as DINOv2 (Stein et "
      "al. 2023).";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::optional<std::string> feature_extractor_weights_path;
  int64_t image_size = 224;
  NetworkResize resize = NetworkResize::clean;
  std::vector<double> mean = {0.485, 0.456, 0.406};
  std::vector<double> std = {0.229, 0.224, 0.225};

  void fields(auto& f) {
    D2_FIELD(
        feature_extractor_weights_path,
        "TorchScript file of the network, which turns pictures [n, 3, image_size, image_size] into "
        "features [n, d]; must be given.",
        not_empty());
    D2_FIELD(image_size, "Side of its input pictures in pixels.", within(1, most::kImageSide));
    D2_FIELD(resize, "How pictures are resized to `image_size`.");
    D2_FIELD(
        mean, "Subtracted from each channel of a picture in [0, 1].", within(-1e3, 1e3).entries(3));
    D2_FIELD(std, "Divisor of each channel after `mean` has been subtracted.", above(0).entries(3));
  }
};

struct LpipsConfig {
  static constexpr const char* kDoc = "Learned perceptual similarity of pairs of pictures.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  LpipsNet net_type = LpipsNet::alex;
  LpipsReduction reduction = LpipsReduction::mean;
  bool normalize = false;
  std::optional<std::string> weights_path;

  void fields(auto& f) {
    D2_FIELD(net_type, "Network whose features are compared.");
    D2_FIELD(reduction, "How the distances are combined.");
    D2_FIELD(normalize, "No effect: the range of the pictures, [0, 1] or [-1, 1], is known.");
    D2_FIELD(weights_path,
             "TorchScript file of the backbone and its linear layers; must be given. "
             "`scripts/export_lpips.py` makes it.",
             not_empty());
  }
};

struct ClipScoreConfig {
  static constexpr const char* kDoc =
      "Extension: CLIP score, how well pictures match their captions: 100 times the mean cosine, "
      "or 0 if that is negative (Hessel et al. 2021).";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::optional<ClipConfig> clip;
  std::optional<std::string> own_sha256;  ///< of decoder.clip: no key

  std::optional<std::string> sha256() const { return clip ? clip->sha256 : own_sha256; }

  void fields(auto& f) { D2_FIELD(clip, "The CLIP; null for `decoder.clip`."); }
};

struct DecoderEvaluateConfig {
  static constexpr const char* kDoc =
      "Metrics of drawn pictures after each validation. Null switches a metric off.";

  int64_t n_evaluation_samples = 1000;
  // Keys as torchmetrics and the reference spell them.
  std::optional<FidConfig> FID;
  std::optional<InceptionScoreConfig> IS;
  std::optional<KidConfig> KID;
  std::optional<LpipsConfig> LPIPS;
  std::optional<PrecisionRecallConfig> PR;
  std::optional<FrechetDistanceConfig> FD;
  std::optional<ClipScoreConfig> clip_score;
  std::optional<NetworkResize> resize;
  std::optional<std::string> cache_path;

  void fields(auto& f) {
    D2_FIELD(n_evaluation_samples, "Pictures drawn for the metrics.", within(1, most::kEpochs));
    D2_FIELD(FID, "Fréchet inception distance.");
    D2_FIELD(IS, "Inception score.");
    D2_FIELD(KID, "Kernel inception distance.");
    D2_FIELD(LPIPS, "Learned perceptual similarity.");
    D2_FIELD(PR, "Precision and recall.");
    D2_FIELD(FD, "Fréchet distance with your own network.");
    D2_FIELD(clip_score, "CLIP score; `{}` uses `decoder.clip`.");
    D2_FIELD(
        resize,
        "How pictures are resized for the Inception network, on which results depend: `tf1` as in "
        "pytorch-fid and torch-fidelity, `antialias` as in torchmetrics since 1.8, `clean` as in "
        "clean-fid. Null: as `FID.antialias` says, otherwise `tf1`.");
    D2_FIELD(cache_path,
             "Folder that caches the features of real pictures for later runs. Null: `metrics` in "
             "`tracker.data_path`.",
             not_empty());
    f.check(!KID || KID->subset_size <= n_evaluation_samples,
            "KID/subset_size",
            "must not exceed n_evaluation_samples (" + std::to_string(n_evaluation_samples) +
                "), got " + std::to_string(KID.value_or(KidConfig{}).subset_size));
    const std::optional<bool> antialias = FID.value_or(FidConfig{}).antialias;
    f.check(!antialias || !resize || *antialias == (resize == NetworkResize::antialias),
            "resize",
            "contradicts FID/antialias: give one of them");
    f.check(network_paths().size() < 2,
            FID && FID->feature_extractor_weights_path ? "FID/feature_extractor_weights_path"
                                                       : "KID/feature_extractor_weights_path",
            "differs from that of another metric: one network serves all");
  }

  bool is_off() const { return !FID && !IS && !KID && !LPIPS && !PR && !FD && !clip_score; }
  bool needs_network() const { return FID || IS || KID || PR; }

  NetworkResize network_resize() const {
    if (resize) return *resize;
    const bool antialias = FID.value_or(FidConfig{}).antialias.value_or(false);
    return antialias ? NetworkResize::antialias : NetworkResize::tf1;
  }

  /// Calls visit(name, metric) for each that takes the Inception network.
  void network_metrics(const auto& visit) const {
    if (FID) visit("FID", *FID);
    if (IS) visit("IS", *IS);
    if (KID) visit("KID", *KID);
    if (PR) visit("PR", *PR);
  }

  /// The different files that the metrics name.
  std::set<std::string> network_paths() const {
    std::set<std::string> paths;
    network_metrics([&](const char*, const auto& metric) {
      if (const auto& path = metric.feature_extractor_weights_path) paths.insert(*path);
    });
    return paths;
  }
};

}  // namespace dalle2
