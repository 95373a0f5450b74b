// SPDX-License-Identifier: MIT
// The transformer of the diffusion prior. Tokens are [B, N, D].
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/prior/prior_config.h"
#include "model/attention.h"
#include "model/layers.h"
#include "model/random.h"

namespace dalle2 {

/// Rotary position embeddings (Su et al. 2021, section 3.4.2) of neighbouring pairs. One module is
/// shared by all layers; its frequencies are a parameter that is not trained, as in the reference's
/// files.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  /// @param dim entries of a head that are rotated, even; those after them stay as they are
  explicit RotaryEmbeddingImpl(int64_t dim);

  struct Angles {
    at::Tensor cos, sin;  ///< [N, dim / 2] float32; undefined without rotary embeddings
  };
  Angles angles(int64_t tokens) const;
  /// @param x [B, N, heads, dim_head], of any floating type
  static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

  at::Tensor freqs;  ///< [dim / 2]
};

/// Bucket of each distance back from a query, 0 for keys ahead (Raffel et al. 2020, section 2.1):
/// the first half of the buckets are single distances, the others grow up to 128. The null key
/// is at index 0, so that a token sees itself at distance -1 and the one before at 0; trained
/// weights depend on it. [queries, keys] int64
at::Tensor relative_position_buckets(int64_t queries, int64_t keys, const at::Device& device);

/// A learned bias of each head for each bucket.
class RelativePositionBiasImpl : public torch::nn::Module {
 public:
  static constexpr int64_t kBuckets = 32;
  /// @param factor of all biases
  RelativePositionBiasImpl(int64_t heads, double factor);
  /// With -infinity where a query must not look: ahead of itself. The null key is always seen.
  /// @return [N, heads, N + 1]
  at::Tensor causal_bias(int64_t tokens) const;

 private:
  double factor_;
  torch::nn::Embedding embedding_{nullptr};
};

/// What all layers of a pass share, for N tokens behind n others.
struct AttentionPositions {
  at::Tensor bias;  ///< [N, heads, n + N + 1]
  at::Tensor hidden =
      {};  ///< [B, 1, 1, n + N + 1] bool: keys that none attends to; undefined: none
  RotaryEmbeddingImpl::Angles angles;  ///< of the N; undefined without rotary embeddings
};

/// What later tokens see of earlier ones, in one layer. Keys have length 1; the null key stands first.
struct KeysValues {
  at::Tensor keys, values;  ///< [B or 1, n + 1, dim_head]; 1: the same for all samples
};

/// Cached keys and values of the tokens that a sequence begins with. None of them attends to a later token, so
/// they are computed once for all that may follow.
struct PrefixCache {
  int64_t tokens = 0;
  std::vector<KeysValues> layers;
};

/// Causal self attention by 16 cos(q, k) (until 1.4.2 by q.k / sqrt(dim_head)) with one key/value head; a
/// learned null key and value stand before the first token.
class CausalAttentionImpl : public torch::nn::Module {
 public:
  /// @param rotary shared by all layers, or null; @param number of its dropout
  CausalAttentionImpl(const PriorNetworkConfig& config,
                      const std::shared_ptr<RotaryEmbeddingImpl>& rotary,
                      int64_t number);
  /// @param x [B, N, dim]; @param positions of its tokens
  /// @param num_outputs compute outputs only for that number of last tokens
  /// @param before keys and values of the tokens before x, or null
  /// @return [B, num_outputs, dim], without the residual
  at::Tensor forward(const at::Tensor& x,
                     const AttentionPositions& positions,
                     const DropoutSeed& seed,
                     int64_t num_outputs,
                     const KeysValues* before);
  /// The keys and values of x, which begins a sequence.
  KeysValues encode(const at::Tensor& x, const AttentionPositions& positions);
  /// Whether the layer drops something now, so that samples with equal inputs differ.
  bool drops() const;

 private:
  KeysValues keys_values(const at::Tensor& normed,
                         const AttentionPositions& positions,
                         const KeysValues* before);
  at::Tensor attend(const at::Tensor& q,
                    const at::Tensor& k,
                    const at::Tensor& v,
                    const at::Tensor& bias,
                    const DropoutSeed& seed) const;
  at::Tensor unit(const at::Tensor& x) const { return is_cosine_ ? l2_normalize(x) : x; }

  int64_t dim_head_, number_;
  double dropout_, scale_;
  bool is_cosine_;
  at::Tensor null_kv_;  // [2, dim_head]
  std::shared_ptr<GainNormImpl> norm_;
  std::shared_ptr<LinearLayerImpl> to_q_, to_kv_;
  std::shared_ptr<AttentionOutImpl> to_out_;
};

/// Norm, linear, SwiGLU (Shazeer 2020), norm (`normformer`), dropout, linear.
class GatedFeedForwardImpl : public torch::nn::Module {
 public:
  GatedFeedForwardImpl(const PriorNetworkConfig& config, int64_t number);
  /// [B, N, dim] -> [B, N, dim], without the residual
  at::Tensor forward(const at::Tensor& x, const DropoutSeed& seed);
  bool drops() const { return (is_training() && dropout_ > 0) || in_->drops() || out_->drops(); }

 private:
  int64_t number_;
  double dropout_;
  std::shared_ptr<GainNormImpl> norm_, inner_norm_;
  std::shared_ptr<LinearLayerImpl> in_, out_;
};

class CausalTransformerImpl : public torch::nn::Module {
 public:
  explicit CausalTransformerImpl(const PriorNetworkConfig& config);
  /// @param tokens [B, N, dim]; @param seed of dropouts, which are active in training mode
  /// @param num_outputs compute outputs only for that number of last tokens
  /// @param before of encode_prefix(), or null
  /// @param key_mask [B, N] bool, false for tokens that none attends to; undefined hides none, and needs no `before`
  /// @return [B, num_outputs, dim]
  at::Tensor forward(const at::Tensor& tokens,
                     const DropoutSeed& seed,
                     int64_t num_outputs,
                     const PrefixCache* before = nullptr,
                     const at::Tensor& key_mask = {});
  /// The tokens that a sequence begins with, without dropout. @param tokens [B or 1, n, dim]
  PrefixCache encode_prefix(const at::Tensor& tokens);
  /// Whether it drops something now: encode_prefix() would not be what forward() sees.
  bool drops() const;

 private:
  AttentionPositions positions(int64_t before, int64_t tokens) const;

  std::shared_ptr<GainNormImpl> init_norm_, norm_;
  std::shared_ptr<RelativePositionBiasImpl> bias_;
  std::shared_ptr<RotaryEmbeddingImpl> rotary_;
  std::vector<std::shared_ptr<CausalAttentionImpl>> attentions_;
  std::vector<std::shared_ptr<GatedFeedForwardImpl>> feed_forwards_;
  std::shared_ptr<LinearLayerImpl> project_out_;
};

}  // namespace dalle2
