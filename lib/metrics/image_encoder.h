// SPDX-License-Identifier: MIT
// A network of the user's own, as TorchScript, whose features a Fréchet distance compares.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "config/decoder/decoder_evaluate_config.h"

namespace dalle2 {

inline constexpr const char* kEncoderAdvice =
    "torch.jit.trace(network.eval(), torch.zeros(1, 3, side, side)).save(file) makes one from a "
    "network that gives features [n, d].";

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

}  // namespace dalle2
