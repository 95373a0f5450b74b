// SPDX-License-Identifier: MIT
#include "model/clip/contrastive_loss.h"

#include <torch/torch.h>

#include "model/layers.h"

namespace dalle2 {

at::Tensor pair_features(const at::Tensor& images, const at::Tensor& texts) {
  return l2_normalize(at::stack({images.to(at::kFloat), texts.to(at::kFloat)}, 1));
}

at::Tensor contrastive_loss(const at::Tensor& pairs, const at::Tensor& logit_scale) {
  const at::Tensor logits =
      logit_scale.exp() * pairs.select(1, 0).matmul(pairs.select(1, 1).t());  // [B, B]
  const at::Tensor own = at::arange(pairs.size(0), logits.options().dtype(at::kLong));
  return (at::cross_entropy_loss(logits, own) + at::cross_entropy_loss(logits.t(), own)) / 2;
}

}  // namespace dalle2
