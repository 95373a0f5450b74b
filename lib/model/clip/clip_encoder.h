// SPDX-License-Identifier: MIT
// What priors and decoders ask of a CLIP, whichever it is. Legend: B batch, D width of embeddings, L
// tokens of a text, W width of text encodings.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace dalle2 {

/// Values of the patches of pictures, patches and pixels row by row, the channels of a pixel side by
/// side. @param images [B, 3, S, S], `patch_size` divides S @return [B, N, 3 patch_size^2]
at::Tensor patch_values(const at::Tensor& images, int64_t patch_size);

struct ClipTexts {
  at::Tensor embed;      ///< [B, D], of length 1
  at::Tensor encodings;  ///< [B, L, W] a vector a token, zero where the mask is false
  at::Tensor mask;       ///< [B, L] bool, tokens that count
};

class ClipEncoderImpl : public torch::nn::Module {
 public:
  /// @param images [B, 3, H, H] in [0, 1], H at least image_size(); they are resized to it
  /// @return [B, D] float32, of length 1 @throws DataError for pictures that are smaller
  virtual at::Tensor embed_image(const at::Tensor& images) = 0;
  /// @param tokens [B, L] int64; those after max_text_len() are left out
  /// @return float32
  virtual ClipTexts embed_text(const at::Tensor& tokens) = 0;
  /// Without the columns at the end that change nothing of what embed_text() makes of the others.
  /// @param tokens [B, L] on the CPU @return [B, L' <= L]
  virtual at::Tensor trimmed(const at::Tensor& tokens) const { return tokens; }

  virtual int64_t image_size() const = 0;    ///< side, pixels
  virtual int64_t max_text_len() const = 0;  ///< tokens
  virtual int64_t embed_dim() const = 0;     ///< D
  virtual int64_t text_width() const = 0;    ///< W

 protected:
  /// The pictures in the size that the image tower sees, [B, 3, image_size, image_size].
  at::Tensor resized(const at::Tensor& images) const;
};

}  // namespace dalle2
