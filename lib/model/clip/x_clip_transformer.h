// SPDX-License-Identifier: MIT
// The transformer of both towers of x-clip's CLIP. Names of parameters are x-clip's.
// Legend: B batch, N tokens, W width.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/attention.h"
#include "model/layers.h"

namespace dalle2 {

/// Rotary position embeddings (Su et al. 2021, section 3.4.2) that pair an entry of the first half with
/// one of the second. Key `inv_freq`.
class HalvesRotaryImpl : public torch::nn::Module {
 public:
  /// @param dim entries of a head that are rotated, even; those after them stay as they are
  explicit HalvesRotaryImpl(int64_t dim);

  struct Angles {
    at::Tensor cos, sin;  ///< [N, dim / 2]; undefined: nothing is rotated
  };
  Angles angles(int64_t tokens) const;
  /// @param x [..., N, dim_head]
  static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

 private:
  at::Tensor inv_freq_;  // [dim / 2]
};

struct XClipTransformerShape {
  int64_t width = 0, layers = 0, heads = 0, head_width = 0;
};

/// Attention over all tokens, whose values are rotated too. Keys `to_qkv.weight`, `to_out.*`.
class XClipAttentionImpl : public torch::nn::Module {
 public:
  explicit XClipAttentionImpl(const XClipTransformerShape& shape);
  /// [B, N, W] -> [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x, const HalvesRotaryImpl::Angles& angles);

 private:
  int64_t heads_;
  std::shared_ptr<LinearLayerImpl> to_qkv_;
  std::shared_ptr<AttentionOutImpl> to_out_;
};

/// Linear, GEGLU (Shazeer 2020), norm, linear. Keys `net.0.weight`, `net.2.g`, `net.4.weight`.
class XClipFeedForwardImpl : public torch::nn::Module {
 public:
  explicit XClipFeedForwardImpl(int64_t width);
  /// [B, N, W] -> [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<LinearLayerImpl> in_, out_;
  std::shared_ptr<GainNormImpl> norm_;
};

/// Pre-norm layers between two norms. Keys `layers.N.0.norm.g`, `layers.N.0.fn.*` (attention),
/// `layers.N.1.*` (feed-forward), `norm_in.g`, `norm_out.g`.
class XClipTransformerImpl : public torch::nn::Module {
 public:
  explicit XClipTransformerImpl(const XClipTransformerShape& shape);
  /// [B, N, W] -> [B, N, W]
  at::Tensor forward(const at::Tensor& tokens, const HalvesRotaryImpl::Angles& angles = {});

 private:
  struct Layer {
    std::shared_ptr<GainNormImpl> attention_norm, forward_norm;
    std::shared_ptr<XClipAttentionImpl> attention;
    std::shared_ptr<XClipFeedForwardImpl> feed_forward;
  };
  std::vector<Layer> layers_;
  std::shared_ptr<GainNormImpl> norm_in_, norm_out_;
};

}  // namespace dalle2
