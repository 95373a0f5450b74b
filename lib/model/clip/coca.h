// SPDX-License-Identifier: MIT
// The CoCa (Yu et al. 2022, arXiv 2205.01917) of coca-pytorch 0.1.0, as dalle2-pytorch's adapter uses
// it, with vit-pytorch's SimpleViT as image encoder. Names of parameters are those of the two packages.
// Legend: B batch, S side of the pictures, L tokens of a text, N of a picture, W width, D of the latents.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/clip/coca_config.h"
#include "model/clip/clip_encoder.h"
#include "model/clip/coca_layers.h"
#include "model/clip/simple_vit.h"

namespace dalle2 {

class CocaImpl : public ClipEncoderImpl {
 public:
  /// @param config with an image encoder
  explicit CocaImpl(const CocaConfig& config);

  /// What the first query makes of the tokens of the pictures, after its norm and not of length 1.
  /// Pictures are seen as they are, in [0, 1]. @see ClipEncoderImpl
  at::Tensor embed_image(const at::Tensor& images) override;
  /// The class token stands after the last token, whatever that is: how far a text is filled up
  /// changes what is made of it. Encodings are zero at token 0.
  ClipTexts embed_text(const at::Tensor& tokens) override;
  /// The cosine of their latents.
  at::Tensor similarity(const at::Tensor& images, const at::Tensor& texts) override;

  const CocaConfig& config() const { return config_; }
  int64_t image_size() const override { return config_.img_encoder->image_size; }
  int64_t max_text_len() const override { return config_.max_text_len; }
  int64_t embed_dim() const override { return config_.dim; }
  int64_t text_width() const override { return config_.dim; }

 private:
  void add_text_layers(const CocaLayerShape& shape);
  /// Keys each token looks at: those before it, and the class token none that fill up a text.
  /// @param tokens [B, L] @return [B, 1, L + 1, L + 1] bool
  at::Tensor seen_by(const at::Tensor& tokens) const;

  CocaConfig config_;
  at::Tensor text_cls_token_;  // [W]
  at::Tensor img_queries_;     // [queries + 1, W]
  torch::nn::Embedding token_emb_{nullptr};
  std::shared_ptr<SimpleVitImpl> vit_;
  std::shared_ptr<CocaCrossAttentionImpl> img_attn_pool_;
  std::shared_ptr<GammaNormImpl> img_attn_pool_norm_, text_cls_norm_;
  std::shared_ptr<LinearLayerImpl> img_to_latents_, text_to_latents_;
  std::vector<std::shared_ptr<ParallelBlockImpl>> unimodal_layers_;
};

}  // namespace dalle2
