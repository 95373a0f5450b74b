// SPDX-License-Identifier: MIT
// Where a prior's text embeddings come from while it is used: a CLIP model, or a stand-in.
#pragma once

#include <ATen/core/Tensor.h>

#include "diffusion/prior/prior.h"

namespace dalle2 {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// @param tokens [B, L] int64 @return embeddings [B, D] and encodings [B, L, D]
  virtual TextEmbedding embed_text(const at::Tensor& tokens) = 0;
};

}  // namespace dalle2
