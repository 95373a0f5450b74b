// SPDX-License-Identifier: MIT
// The network whose features FID, IS and KID compare: Inception of 2015-12-05, as TorchScript.
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

/// [n, d] float32 on the CPU by their layer.
using Features = std::map<InceptionFeature, at::Tensor>;

/// "2048", "logits_unbiased".
std::string layer_name(InceptionFeature layer);

/// Of an archive of scripts/export_inception.py, or of StyleGAN2-ADA's inception-2015-12-05.pt, which
/// resizes by itself and has the layers 2048 and logits_unbiased alone.
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

}  // namespace dalle2
