// SPDX-License-Identifier: MIT
// A CLIP as a part of a decoder or prior, which it is not trained with.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "model/clip/clip_encoder.h"

namespace dalle2 {

/// The name of such a module in its model. With it the weights have the reference's keys:
/// `clip.clip.*`.
inline constexpr const char* kFrozenClipName = "clip";
/// Whether a tensor of a model belongs to such a module, by its name.
inline bool is_of_frozen_clip(const std::string& name) {
  return name.starts_with(std::string(kFrozenClipName) + ".");
}

/// Without gradients, and in eval mode whatever mode its model is put into; differs from upstream,
/// whose CLIP goes into training mode along with the decoder.
class FrozenClipImpl : public torch::nn::Module {
 public:
  explicit FrozenClipImpl(std::shared_ptr<ClipEncoderImpl> clip);

  void train(bool on = true) override;

 private:
  std::shared_ptr<ClipEncoderImpl> clip_;
};

}  // namespace dalle2
