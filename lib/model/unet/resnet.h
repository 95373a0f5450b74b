// SPDX-License-Identifier: MIT
// The residual block of the Unet.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <optional>

#include "model/attention.h"
#include "model/layers.h"

namespace dalle2 {

/// 3x3 convolution, GroupNorm, optional scale and shift, SiLU.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t in, int64_t out, int64_t groups, bool weight_standardization = false);
  /// @param x [B, in, H, W]
  /// @param scale_shift [B, 2 out], scale first, or undefined
  /// @return [B, out, H, W]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale_shift = {});

 private:
  bool weight_standardization_;
  std::shared_ptr<ConvLayerImpl> project_;
  std::shared_ptr<torch::nn::GroupNormImpl> norm_;
};

struct ResnetBlockOptions {
  int64_t in = 0;
  int64_t out = 0;
  int64_t time_dim = 0;  ///< width of the time vector
  int64_t groups = 8;
  std::optional<int64_t> cond_dim;  ///< width of the condition tokens; none: no cross attention
  bool weight_standardization = false;
  bool cosine_sim_cross_attn = false;
};

/// Two blocks with a residual; time scales and shifts the first, conditions enter between them.
class ResnetBlockImpl : public torch::nn::Module {
 public:
  explicit ResnetBlockImpl(const ResnetBlockOptions& options);
  /// @param x [B, in, H, W]
  /// @param silu_time [B, time_dim]: SiLU of the time vector, the same for all blocks of a pass
  /// @param context [B, M, cond_dim]; not read without cross attention
  /// @return [B, out, H, W]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& silu_time, const at::Tensor& context);

 private:
  std::shared_ptr<LinearLayerImpl> time_mlp_;
  std::shared_ptr<CrossAttentionImpl> cross_attn_;  // null without conditions
  std::shared_ptr<BlockImpl> block1_, block2_;
  std::shared_ptr<ConvLayerImpl> res_conv_;  // null if in == out
};

}  // namespace dalle2
