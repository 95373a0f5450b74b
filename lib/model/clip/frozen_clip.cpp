// SPDX-License-Identifier: MIT
#include "model/clip/frozen_clip.h"

#include <utility>

namespace dalle2 {

FrozenClipImpl::FrozenClipImpl(std::shared_ptr<ClipEncoderImpl> clip)
    : clip_(register_module("clip", std::move(clip))) {
  for (const at::Tensor& parameter : clip_->parameters()) parameter.requires_grad_(false);
  FrozenClipImpl::train(false);
}

void FrozenClipImpl::train(bool /*on*/) {
  torch::nn::Module::train(false);
}

}  // namespace dalle2
