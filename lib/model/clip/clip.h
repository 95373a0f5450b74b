// SPDX-License-Identifier: MIT
// CLIP (Radford et al. 2021, arXiv 2103.00020) as OpenAI and open_clip have it: names of parameters are
// theirs. Legend: B batch, S side of the pictures, L tokens of a text, W width of the text tower, D
// width of the embeddings.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn.h>

#include <cstdint>
#include <memory>

#include "config/clip/clip_network_config.h"
#include "model/clip/clip_encoder.h"
#include "model/clip/image_tower.h"

namespace dalle2 {

/// The tokens up to the end of the longest text: those after it change no feature, as a token sees only
/// those before it. @param tokens [B, L] on the CPU @return [B, L' <= L], a view
at::Tensor trimmed_tokens(const at::Tensor& tokens);

class ClipImpl : public ClipEncoderImpl {
 public:
  /// Weights drawn from torch's default generator, as open_clip draws them.
  explicit ClipImpl(const ClipNetworkConfig& config);

  /// Features before they are normalised. @param images [B, 3, S, S] in [0, 1] @return [B, D]
  at::Tensor image_features(const at::Tensor& images);
  /// @param tokens [B, L] int64, L up to the context length; the feature is that of the token with
  /// the highest number, which ends the text @return [B, D]
  at::Tensor text_features(const at::Tensor& tokens);

  /// l2-normalised image_features() of pictures of any larger size. @see ClipEncoderImpl
  at::Tensor embed_image(const at::Tensor& images) override;
  /// Encodings are those after the final norm. A token counts up to the first that ends the text, but
  /// for token 0 (a "!" in the words of OpenAI's vocabulary), as in the reference's adapters.
  ClipTexts embed_text(const at::Tensor& tokens) override;
  at::Tensor trimmed(const at::Tensor& tokens) const override { return trimmed_tokens(tokens); }

  const ClipNetworkConfig& config() const { return config_; }
  ClipPreprocessing preprocessing() const override { return config_.preprocessing(); }
  int64_t image_size() const override { return config_.vision_cfg.image_size; }
  int64_t max_text_len() const override { return config_.text_cfg.context_length; }
  int64_t embed_dim() const override { return config_.embed_dim; }
  int64_t text_width() const override { return config_.text_cfg.width; }

  at::Tensor logit_scale;  ///< [] logarithm of the temperature's inverse

 private:
  void init_text_weights();
  at::Tensor normalized(const at::Tensor& images);
  at::Tensor embedded_tokens(const at::Tensor& tokens);

  ClipNetworkConfig config_;
  at::Tensor positional_embedding_;    // [context length, W]
  at::Tensor text_projection_;         // [W, D]
  at::Tensor image_mean_, image_std_;  // [3, 1, 1], not in files
  std::shared_ptr<ClipImageTowerImpl> visual_;
  std::shared_ptr<ClipTransformerImpl> transformer_;
  torch::nn::Embedding token_embedding_{nullptr};
  std::shared_ptr<ClipNormImpl> ln_final_;
};

/// Features of a picture and of its text as one row, what a joint loss gathers over ranks.
/// @param images, texts [B, D], of any length @return [B, 2, D] float32, each of length 1
at::Tensor pair_features(const at::Tensor& images, const at::Tensor& texts);

/// The loss of CLIP (figure 3 of the paper), the mean of two cross entropies, in nats: of the own text
/// among all texts by the cosine times exp(logit_scale), and of the own picture among all pictures.
/// @param pairs [B, 2, D], by pair_features() @param logit_scale [] @return []
at::Tensor contrastive_loss(const at::Tensor& pairs, const at::Tensor& logit_scale);

}  // namespace dalle2
