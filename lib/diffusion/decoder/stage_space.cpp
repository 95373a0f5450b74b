// SPDX-License-Identifier: MIT
#include "diffusion/decoder/stage_space.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/types.h>

namespace dalle2 {

at::Tensor LatentSpace::from_images(const at::Tensor& images) {
  const torch::NoGradGuard no_grad;
  // Autocast would round what targets are made of to half precision; stored latents are fp32.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  vae_->eval();
  return vae_->encode_unquantized(images) * scale_;
}

at::Tensor LatentSpace::to_images(const at::Tensor& x) {
  const torch::NoGradGuard no_grad;
  vae_->eval();
  return vae_->decode_unquantized(x / scale_);
}

}  // namespace dalle2
