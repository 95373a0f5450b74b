// SPDX-License-Identifier: MIT
// What priors and decoders ask of a CLIP, whichever it is, and what is made of its embeddings. Legend: B batch,
// D width of embeddings, L tokens of a text, W width of text encodings.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>

#include "config/clip/clip_network_config.h"

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

  /// How pictures of any size become what embed_image() takes.
  virtual ClipPreprocessing preprocessing() const { return {.side = image_size()}; }
  virtual int64_t image_size() const = 0;    ///< side, pixels
  virtual int64_t max_text_len() const = 0;  ///< tokens
  virtual int64_t embed_dim() const = 0;     ///< D
  virtual int64_t text_width() const = 0;    ///< W

 protected:
  /// The pictures in the size that the image tower sees, [B, 3, image_size, image_size].
  at::Tensor resized(const at::Tensor& images) const;
};

// Ways between CLIP embeddings, as DALLE2 walks them (Ramesh et al. 2022, arXiv 2204.06125, sections 3.2
// and 3.3), N of them at once.

/// Spherical interpolation: the direction turns at an even pace (Shoemake 1985), the length changes
/// evenly. Opposite directions, between which no turn is the shortest, are joined by a straight line.
/// @param from, to [N, D]; one row stands for all @param share of the way, 0 to 1 @return [N, D]
at::Tensor slerp(const at::Tensor& from, const at::Tensor& to, double share);

/// The direction from one text to another, of length 1. @param from, to [N, D] @return [N, D], NaN
/// where both are the same
at::Tensor text_difference(const at::Tensor& from, const at::Tensor& to);

/// The name of a FrozenClip in its model. With it the weights have the reference's keys: `clip.clip.*`.
inline constexpr const char* kFrozenClipName = "clip";
/// Whether a tensor of a model belongs to it, by its name.
inline bool is_of_frozen_clip(const std::string& name) {
  return name.starts_with(std::string(kFrozenClipName) + ".");
}

/// A CLIP as a part of a decoder or prior, which it is not trained with: without gradients, and in eval
/// mode whatever mode its model is put into; differs from upstream, whose CLIP goes into training mode
/// along with the decoder.
class FrozenClipImpl : public torch::nn::Module {
 public:
  explicit FrozenClipImpl(std::shared_ptr<ClipEncoderImpl> clip);

  void train(bool on = true) override;

 private:
  std::shared_ptr<ClipEncoderImpl> clip_;
};

}  // namespace dalle2
