// SPDX-License-Identifier: MIT
// The discriminator of a VQGAN (Esser et al. 2021, arXiv 2012.09841): one logit a patch.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <vector>

#include "model/layers.h"

namespace dalle2 {

class DiscriminatorImpl : public torch::nn::Module {
 public:
  /// @param dim width before the first halving @param layers halvings, each twice as wide
  DiscriminatorImpl(int64_t dim, int64_t layers, int64_t channels);
  /// [B, C, H, W] -> [B, 1, H / 2^layers - 3, W / 2^layers - 3]
  at::Tensor forward(const at::Tensor& images);

 private:
  std::vector<std::shared_ptr<ConvLayerImpl>> convs_;
  std::vector<std::shared_ptr<torch::nn::GroupNormImpl>> norms_;  // of all but the first
  std::shared_ptr<ConvLayerImpl> mix_, to_logits_;
};

}  // namespace dalle2
