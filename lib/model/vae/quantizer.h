// SPDX-License-Identifier: MIT
// Quantisers of a VQGAN-VAE. Legend: B batch, D width of the encoded map, h w
// its places, N = B h w, K codes, d width of a code.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "config/vae/vae_config.h"
#include "model/layers.h"

namespace dalle2 {

/// [K] int64: how often each code is among the indices [N]. Unlike at::bincount it reads nothing back from a GPU.
at::Tensor counts_of_codes(const at::Tensor& indices, int64_t codes);

/// All codes of that many bits. @return [2^bits, bits], values -1 and 1, the first bit the highest
at::Tensor sign_codes(int64_t bits, const at::TensorOptions& options);

/// Entropies, in nats, of the distributions that tokens have over all codes: softmax of 200 times
/// the products with the codes (Yu et al. 2023, section 3.1). Logarithms are of 1e-5
/// at least.
struct CodeEntropies {
  at::Tensor per_token;  ///< [], the mean over the tokens: how sure these are of their codes
  at::Tensor of_mean;    ///< [], of the mean distribution: how evenly the codes are used
};

/// The bits of a code are independent, so a distribution is the product of those of two halves of
/// the bits: of 65,536 codes 512 numbers are kept for a token. Gradients reach `tokens`.
/// @param tokens [N, bits]
CodeEntropies code_entropies(const at::Tensor& tokens);

struct Quantized {
  at::Tensor map;      ///< [B, D, h, w]; gradients pass to the encoder
  at::Tensor indices;  ///< [B, h, w] int64, 0 to K - 1
  at::Tensor loss;     ///< [] weighted, to be added to the others; 0 in evaluation mode
};

/// The ranks that a codebook is averaged over.
struct CodeRanks {
  int rank = 0, size = 1;
  std::function<void(at::Tensor& tensor)> sum =
      nullptr;  ///< over all ranks, in place; null: one rank
  /// The numbers of all ranks, by the hosts alone: no device is waited for. Null: one rank.
  std::function<std::vector<int64_t>(int64_t own)> exchange = nullptr;
};

class QuantizerImpl : public torch::nn::Module {
 public:
  /// In training mode a codebook that is a moving average takes notes for learn().
  /// @param map [B, D, h, w] @param generator draws the first codes
  virtual Quantized quantize(const at::Tensor& map, const at::Generator& generator) = 0;
  /// In the place of quantize() on a rank without samples while others have some: the first codes
  /// are made by all together.
  virtual void quantize_nothing() {}
  /// Moves the codes by what was quantised since the last call; all ranks have to call it.
  /// @param generator draws vectors instead of codes that are not used
  /// @param was_skipped [] not 0: the update that the passes were for was skipped, and nothing is
  /// learned from them; undefined: it was made
  virtual void learn(const at::Generator& /*generator*/, const at::Tensor& /*was_skipped*/ = {}) {}
  virtual void set_ranks(CodeRanks /*ranks*/) {}
};

/// The signs of a projection to log2 K numbers are the code (Yu et al. 2023, arXiv 2310.05737). The
/// first bit is the highest.
class LookupFreeQuantizerImpl : public QuantizerImpl {
 public:
  LookupFreeQuantizerImpl(int64_t dim, int64_t codes, const LookupFreeConfig& config);
  Quantized quantize(const at::Tensor& map, const at::Generator& generator) override;

 private:
  LookupFreeConfig config_;
  at::Tensor mask_;                                            // [log2 K] int64, values of the bits
  std::shared_ptr<LinearLayerImpl> project_in_, project_out_;  // null: the widths are equal
};

/// The nearest of K codes, which are moving averages of what they were nearest to (van den Oord et
/// al. 2017, appendix A.1). They move once an update, not with each pass as in the reference, so that
/// neither chunks of a batch nor ranks change anything.
class VectorQuantizerImpl : public QuantizerImpl {
 public:
  VectorQuantizerImpl(int64_t dim, const VaeConfig& config);
  Quantized quantize(const at::Tensor& map, const at::Generator& generator) override;
  void quantize_nothing() override;
  void learn(const at::Generator& generator, const at::Tensor& was_skipped = {}) override;
  void set_ranks(CodeRanks ranks) override { ranks_ = std::move(ranks); }

  /// [K, d]
  at::Tensor codebook() const { return embed_.select(0, 0); }

 private:
  void begin_codes(const at::Tensor& tokens, const at::Generator& generator);
  void take_notes(const at::Tensor& tokens, const at::Tensor& indices);
  bool has_begun();
  void replace_dead(const at::Tensor& learns, const at::Generator& generator);
  /// The first rank that has tokens: what is drawn is drawn by it.
  struct Drawer {
    bool is_own;
    int64_t tokens;  // that it has; 0: no rank has any
  };
  Drawer drawer(int64_t own_tokens) const;
  void replace_dead_on_device(const at::Tensor& learns,
                              const Drawer& drawer,
                              const at::Tensor& tokens,
                              const at::Generator& generator);
  void replace_counted_dead(const Drawer& drawer,
                            const at::Tensor& tokens,
                            const at::Generator& generator);
  at::Tensor drawn_by(const Drawer& drawer,
                      const at::Tensor& tokens,
                      int64_t count,
                      const at::Generator& generator) const;
  void sum_over_ranks(at::Tensor& tensor) const {
    if (ranks_.sum) ranks_.sum(tensor);
  }
  at::Tensor mean_codes() const;

  VaeConfig config_;
  std::shared_ptr<LinearLayerImpl> project_in_, project_out_;  // null: the widths are equal
  at::Tensor initted_;                                         // [] bool
  at::Tensor cluster_size_;                                    // [1, K]
  at::Tensor embed_avg_, embed_;                               // [1, K, d]
  CodeRanks ranks_;
  // `initted_` as the host has last read it, and what tells whether it has changed since.
  using Seen = std::pair<const void*, int64_t>;
  std::optional<Seen> seen_;
  bool begun_ = false;
  // Since the last learn(): how often each code was the nearest, the sum of what it was nearest to,
  // and the vectors themselves where unused codes are replaced by some.
  at::Tensor noted_counts_, noted_sums_, noted_tokens_;
};

std::shared_ptr<QuantizerImpl> make_quantizer(int64_t dim, const VaeConfig& config);

}  // namespace dalle2
