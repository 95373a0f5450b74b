// SPDX-License-Identifier: MIT
// The frozen CLIP of a decoder's or prior's run: embeddings of pictures and captions while it trains.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/types.h"
#include "config/shared/clip_config.h"
#include "config/shared/train_options.h"
#include "model/clip/clip_encoder.h"
#include "run/checkpoints/clip_weights.h"
#include "run/clip/clip_data.h"

namespace dalle2 {

class ClipEmbedder {
 public:
  /// @param name of the CLIP in messages: "/prior/clip (clip.pth)"
  ClipEmbedder(LoadedClip clip, std::string name);

  const ClipEncoderImpl& clip() const { return *clip_.clip; }
  const std::string& name() const { return name_; }

  /// Makes it a part of `model`, whose checkpoints then hold it and which takes it to its device.
  void hold_in(torch::nn::Module& model) const;
  void to(const at::Device& device) { clip_.clip->to(device); }
  /// How the networks of the run compute, and in chunks of how many samples; before that in float32,
  /// and all at once.
  void compute_as(MixedPrecision precision, std::optional<int64_t> max_batch_size);

  /// @param images [B, 3, H, H] in [0, 1] on its device @return [B, D] float32
  /// @throws DataError for pictures smaller than those that it sees
  at::Tensor embed_images(const at::Tensor& images) const;
  /// Texts that are too long are cut, with a warning. @return float32; encodings are as long as the longest text
  TextEmbedding embed_captions(const std::vector<std::string>& captions) const;
  /// Cosines of pictures and their captions. @param images as of embed_images() @return [B] float32
  at::Tensor similarity(const at::Tensor& images, const std::vector<std::string>& captions) const;

 private:
  LoadedClip clip_;
  std::shared_ptr<FrozenClipImpl> module_;
  std::string name_;
  MixedPrecision precision_ = MixedPrecision::no;
  std::optional<int64_t> max_batch_size_;
  mutable LongCaptions long_captions_;
};

/// The CLIP of a section; null for none. @param pointer of the section, "/prior/clip"
/// @throws ConfigError if it is nowhere, DataError for one that cannot be used
std::shared_ptr<ClipEmbedder> open_clip_of(const std::optional<ClipConfig>& config,
                                           const std::string& pointer);

}  // namespace dalle2
