// SPDX-License-Identifier: MIT
// The networks of the metrics, as TorchScript, and how pictures come to their size.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config/decoder/decoder_evaluate_config.h"

namespace dalle2 {

/// Bytes as pictures are stored: floor(x * 255 + 0.5), clamped, of x in [0, 1]. @return uint8
at::Tensor to_bytes(const at::Tensor& images);

/// [n, d] float32 on the CPU by their layer.
using Features = std::map<InceptionFeature, at::Tensor>;

/// "2048", "logits_unbiased".
std::string layer_name(InceptionFeature layer);

/// The network whose features FID, IS and KID compare, Inception of 2015-12-05: of an archive of
/// scripts/export_inception.py, or of StyleGAN2-ADA's inception-2015-12-05.pt, which resizes by itself and
/// has the layers 2048 and logits_unbiased alone.
class FeatureNetwork {
 public:
  /// Runs the network once, so that what is wrong with it is known before an epoch is trained.
  /// @param where the config key, for messages @param layers that will be asked for
  /// @throws ConfigError if the file is no such network, or lacks a layer
  FeatureNetwork(const std::string& path,
                 const std::string& where,
                 const std::vector<InceptionFeature>& layers,
                 NetworkResize resize,
                 const at::Device& device);
  ~FeatureNetwork();

  /// @param images [n, 3, h, w] uint8; any n: they are shown to the network some at a time
  Features operator()(const at::Tensor& images) const;

  /// Of the file, in hexadecimal.
  const std::string& sha256() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

inline constexpr const char* kEncoderAdvice =
    "torch.jit.trace(network.eval(), torch.zeros(1, 3, side, side)).save(file) makes one from a "
    "network that gives features [n, d].";

/// A network of the user's own, whose features a Fréchet distance compares.
class ImageEncoder {
 public:
  /// Runs the network once, so that what is wrong with it is known before an epoch is trained.
  /// @throws ConfigError if no file is named, or it is not a network that gives features [n, d]
  ImageEncoder(const FrechetDistanceConfig& config,
               const std::string& where,
               const at::Device& device);
  ~ImageEncoder();

  /// @param images [n, 3, h, w] uint8; any n: they are shown to the network some at a time
  /// @return [n, d] float32 on the CPU
  at::Tensor operator()(const at::Tensor& images) const;

  /// "FD weights 6726825d... at 224 pixels, resize clean".
  std::string description() const;
  /// What decides the features: the file's sha256 and how pictures come to the network.
  std::string identity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// LPIPS (Zhang et al. 2018, arXiv 1801.03924), by an archive that scripts/export_lpips.py makes.
class PerceptualDistance {
 public:
  /// @param image_side of the pictures that will come: a backbone takes none that are too small
  /// @throws ConfigError if the file is no such network, or that of another backbone
  PerceptualDistance(const std::string& path,
                     const std::string& where,
                     LpipsNet net,
                     int64_t image_side,
                     const at::Device& device);
  ~PerceptualDistance();

  /// Of pairs of pictures. @param one, other [n, 3, h, w] float32 in [0, 1], clamped to it
  /// @return [n] float32 on the CPU
  at::Tensor operator()(const at::Tensor& one, const at::Tensor& other) const;

  const std::string& sha256() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dalle2
