// SPDX-License-Identifier: MIT
// The parts of a Unet and the stages of its forward pass; private to unet*.cpp.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "config/decoder/decoder_config.h"
#include "model/attention.h"
#include "model/layers.h"
#include "model/unet/unet.h"

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

/// Width of the vector that the time becomes.
inline int64_t time_dim(const UnetConfig& config) {
  return 4 * config.dim;
}
/// Width of the condition tokens.
inline int64_t cond_dim(const UnetConfig& config) {
  return config.cond_dim.value_or(config.dim);
}

/// Two blocks with a residual; time scales and shifts the first, conditions enter between them.
class ResnetBlockImpl : public torch::nn::Module {
 public:
  /// @param cond with cross attention to the conditions
  ResnetBlockImpl(const UnetConfig& config, int64_t in, int64_t out, int64_t groups, bool cond);
  /// @param x [B, in, H, W]
  /// @param scale_shift [B, 2 out], what time_mlp makes of the SiLU of the time vector
  /// @param context [B, M, cond_dim]; not read without cross attention
  /// @return [B, out, H, W]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale_shift, const at::Tensor& context);

  std::shared_ptr<LinearLayerImpl> time_mlp;

 private:
  std::shared_ptr<CrossAttentionImpl> cross_attn_;  // null without conditions
  std::shared_ptr<BlockImpl> block1_, block2_;
  std::shared_ptr<ConvLayerImpl> res_conv_;  // null if in == out
};

/// One resolution of a Unet; the same on the way down and up.
struct UnetLevel {
  int64_t in = 0;          ///< channels arriving from the finer level
  int64_t out = 0;         ///< channels of the coarser level
  int64_t width = 0;       ///< channels of the blocks on the way down
  int64_t groups = 0;      ///< of the group norms
  int64_t num_blocks = 0;  ///< not counting the first
  bool self_attn = false;
  bool first = false;  ///< the finest: no cross attention
  bool last = false;   ///< the coarsest
};

/// One resolution on one way. Empty modules do nothing.
struct UnetStage {
  torch::nn::AnyModule pre;  ///< on the way down of a memory-efficient unet
  std::shared_ptr<ResnetBlockImpl> first;
  std::vector<std::shared_ptr<ResnetBlockImpl>> blocks;
  torch::nn::AnyModule attention;
  bool attention_first = false;  ///< before `blocks`
  torch::nn::AnyModule post;
};

/// The condition vectors of one forward pass.
struct UnetEmbedded {
  at::Tensor silu_time;  ///< [B, 4 dim]: SiLU of the time vector
  /// [B, 2 out] by block: what its time_mlp makes of silu_time, if all were one product; else empty
  std::unordered_map<const ResnetBlockImpl*, at::Tensor> scale_shifts;
  at::Tensor context;      ///< [B, time and image tokens, cond_dim]
  at::Tensor mid_context;  ///< [B, the same and the text tokens, cond_dim]
};

struct UnetLayers {
  UnetConfig config;
  std::vector<UnetLevel> levels;  // fine to coarse

  at::Tensor null_image_embed;    // [1, num_image_tokens, cond_dim]
  at::Tensor null_image_hiddens;  // [1, 4 dim]
  at::Tensor null_text_embed;     // [1, max_text_len, cond_dim]
  torch::nn::AnyModule init_conv;
  std::shared_ptr<LinearLayerImpl> to_time_hiddens, to_time_tokens, to_time_cond;
  std::shared_ptr<LinearLayerImpl> image_to_tokens, to_image_hiddens, text_to_cond;
  std::shared_ptr<LinearLayerImpl> lowres_noise_in, lowres_noise_out;
  std::shared_ptr<torch::nn::LayerNormImpl> norm_cond, norm_mid_cond;
  std::shared_ptr<ResnetBlockImpl> init_resnet_block, mid_block1, mid_block2, final_resnet_block;
  torch::nn::AnyModule mid_attn;
  std::vector<UnetStage> downs, ups;
  std::vector<std::shared_ptr<BlockImpl>> combiner;  // empty unless combine_upsample_fmaps
  std::shared_ptr<ConvLayerImpl> to_out;

  UnetLayers(UnetImpl& unet, const UnetConfig& unet_config);

  // Construction; the order of registration is the order in files.
  void add_parameters(UnetImpl& unet);
  void add_embeddings(UnetImpl& unet);
  void add_levels(UnetImpl& unet);
  void add_end(UnetImpl& unet);

  std::vector<std::shared_ptr<ResnetBlockImpl>> resnet_blocks() const;

  // One forward pass.
  void check_embeddings(int64_t batch, const UnetConditions& given) const;
  at::Tensor join_inputs(const at::Tensor& x, const UnetConditions& given) const;
  UnetEmbedded embed(const at::Tensor& time, const UnetConditions& given) const;
  void project_time(UnetEmbedded& embedded) const;
  at::Tensor image_tokens(const UnetConditions& given) const;
  at::Tensor text_tokens(const UnetConditions& given) const;
  at::Tensor run(const std::shared_ptr<ResnetBlockImpl>& block,
                 const at::Tensor& x,
                 const UnetEmbedded& e,
                 const at::Tensor& context,
                 bool recomputes) const;
  at::Tensor run_attention(torch::nn::AnyModule& attention,
                           const at::Tensor& x,
                           bool recomputes) const;
  /// @param keeps_gradients a backward pass follows
  at::Tensor trunk(at::Tensor x, const UnetEmbedded& e, bool keeps_gradients);
  at::Tensor combine(const at::Tensor& x, const std::vector<at::Tensor>& maps) const;
  /// Levels, from the largest feature maps on, whose activations the backward pass computes again. The
  /// middle counts as one more level than there are.
  int64_t recomputed_levels = 0;
};

}  // namespace dalle2
