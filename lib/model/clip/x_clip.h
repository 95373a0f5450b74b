// SPDX-License-Identifier: MIT
// The CLIP of x-clip 0.14.4, as dalle2-pytorch's adapter uses it: without masks, and with the class
// tokens. Names of parameters are x-clip's. Legend: B batch, S side of the pictures, L tokens of a
// text, N of a picture, T and I widths of the towers of texts and pictures, W of either, D of the
// embeddings.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/clip/x_clip_config.h"
#include "model/attention.h"
#include "model/clip/clip_encoder.h"
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

/// Keys `cls_token`, `token_emb.weight`, `abs_pos_emb.weight` or `rotary_pos_emb.inv_freq`,
/// `transformer.*`.
class XClipTextTowerImpl : public torch::nn::Module {
 public:
  explicit XClipTextTowerImpl(const XClipConfig& config);
  /// @param tokens [B, L] int64 @return [B, 1 + L, T], the class token first
  at::Tensor forward(const at::Tensor& tokens);

 private:
  at::Tensor cls_token_;  // [T]
  torch::nn::Embedding token_emb_{nullptr};
  torch::nn::Embedding abs_pos_emb_{nullptr};         // of the tokens alone; null: rotary
  std::shared_ptr<HalvesRotaryImpl> rotary_pos_emb_;  // of the class token too
  std::shared_ptr<XClipTransformerImpl> transformer_;
};

/// Keys `to_tokens.1.*`, `pos_emb.weight`, `transformer.*`, `to_cls_tokens.1.weight`.
class XClipImageTowerImpl : public torch::nn::Module {
 public:
  explicit XClipImageTowerImpl(const XClipConfig& config);
  /// The class token, which is made of the mean of all others. @param images [B, 3, S, S]
  /// @return [B, I]
  at::Tensor forward(const at::Tensor& images);

 private:
  int64_t patch_size_;
  std::shared_ptr<LinearLayerImpl> to_tokens_, to_cls_tokens_;
  torch::nn::Embedding pos_emb_{nullptr};
  std::shared_ptr<XClipTransformerImpl> transformer_;
};

class XClipImpl : public ClipEncoderImpl {
 public:
  explicit XClipImpl(const XClipConfig& config);

  /// Pictures are seen as they are, in [0, 1]. @see ClipEncoderImpl
  at::Tensor embed_image(const at::Tensor& images) override;
  /// Encodings are zero at token 0, which fills up texts. The other tokens see it nevertheless, as in
  /// the reference: how far a text is filled up changes what is made of it.
  ClipTexts embed_text(const at::Tensor& tokens) override;

  const XClipConfig& config() const { return config_; }
  int64_t image_size() const override { return config_.visual_image_size; }
  int64_t max_text_len() const override { return config_.text_seq_len; }
  int64_t embed_dim() const override { return config_.dim_latent; }
  int64_t text_width() const override { return config_.dim_text; }

 private:
  XClipConfig config_;
  std::shared_ptr<XClipTextTowerImpl> text_transformer_;
  std::shared_ptr<XClipImageTowerImpl> visual_transformer_;
  std::shared_ptr<LinearLayerImpl> to_text_latent_, to_visual_latent_;
};

}  // namespace dalle2
