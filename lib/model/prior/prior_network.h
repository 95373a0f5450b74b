// SPDX-License-Identifier: MIT
// The network of the diffusion prior. Names of parameters are the file
// format.
#pragma once

#include <torch/nn.h>

#include <memory>

#include "config/prior/prior_config.h"
#include "model/prior/causal_transformer.h"
#include "model/random.h"

namespace dalle2 {

/// Cached keys and values of the text. It comes first and sees neither time nor noised embedding, so they are the
/// same in all steps of a sampler.
struct PriorText {
  PrefixCache given, null;  ///< null: of a dropped text; empty without guidance
};

/// What the network sees beside the noised embedding. Undefined tensors are absent.
struct PriorConditions {
  at::Tensor text_embed;       ///< [B, D]
  at::Tensor text_encodings;   ///< [B, L, D]; rows of zeros are padding
  at::Tensor self_cond;        ///< [B, D]
  at::Tensor text_keep_mask;   ///< [B] bool: false puts the null embeddings; undefined keeps all
  at::Tensor image_keep_mask;  ///< [B] bool: the same for the noised embedding
  std::shared_ptr<const PriorText>
      encoded_text;  ///< from encode_text(), if it was called for these conditions
};

/// A causal transformer over text tokens, text embedding, time, noised image embedding and, last, a
/// learned query, whose output is the prediction.
class PriorNetworkImpl : public torch::nn::Module {
 public:
  /// `config` must be one that plan_prior accepts.
  explicit PriorNetworkImpl(const PriorNetworkConfig& config);

  /// @param image_embed [B, D] noised; @param time [B] int64 @return [B, D]
  /// @param seed of the dropouts, which are active in training mode
  /// @throws DataError for a missing text embedding, a wrong width or batch (both numbers)
  at::Tensor forward(const at::Tensor& image_embed,
                     const at::Tensor& time,
                     const PriorConditions& conditions,
                     const DropoutSeed& seed = {});

  /// Classifier-free guidance: null + (cond - null) * cond_scale; a scale of 1 is a single forward.
  /// For the null answer the text and the image embedding are dropped, as in training.
  at::Tensor forward_with_cond_scale(const at::Tensor& image_embed,
                                     const at::Tensor& time,
                                     const PriorConditions& conditions,
                                     double cond_scale);

  /// Encodes the texts of these conditions, so that forward() need not. For a network in eval mode, without
  /// gradients, while its weights stay as they are. @param guided whether a scale other than 1 follows
  std::shared_ptr<const PriorText> encode_text(const PriorConditions& conditions, bool guided);

  const PriorNetworkConfig& config() const { return config_; }
  /// Whether masks drop anything: they had no effect in 0.23.0 to 1.8.4, and so guidance had none.
  bool drops() const { return config_.layout.nulls != PriorLayout::Nulls::encodings; }

 private:
  void check_text(int64_t batch, const PriorConditions& given) const;
  void build_time_embedding();
  at::Tensor is_text(const PriorConditions& given) const;
  at::Tensor plain_text_encodings(const PriorConditions& given, at::ScalarType dtype) const;
  at::Tensor key_mask(const PriorConditions& given, int64_t tokens) const;
  at::Tensor text_encodings(const PriorConditions& given, at::ScalarType dtype) const;
  at::Tensor text_embeds(const PriorConditions& given) const;
  at::Tensor time_tokens(const at::Tensor& time, at::ScalarType dtype);

  PriorNetworkConfig config_;
  at::Tensor learned_query_;  // [D]
  // Undefined where the layout has none.
  at::Tensor null_text_encodings_;                                     // [1, max_text_len, D]
  at::Tensor null_text_embeds_;                                        // [1, num_text_embeds, D]
  at::Tensor null_image_embed_;                                        // [1, D]
  std::shared_ptr<LinearLayerImpl> to_text_embeds_, to_image_embeds_;  // null for a single token
  torch::nn::Embedding time_table_{nullptr};                           // null for any time
  std::shared_ptr<LinearLayerImpl> time_in_, time_hidden_, time_out_;
  std::shared_ptr<CausalTransformerImpl> transformer_;
};
TORCH_MODULE(PriorNetwork);

}  // namespace dalle2
