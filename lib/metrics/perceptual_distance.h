// SPDX-License-Identifier: MIT
// LPIPS (Zhang et al. 2018, arXiv 1801.03924), by an archive that scripts/export_lpips.py makes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "config/decoder/decoder_evaluate_config.h"

namespace dalle2 {

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
