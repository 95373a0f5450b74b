// SPDX-License-Identifier: MIT
#include "model/unet/resnet.h"

#include "model/frozen_weight.h"

namespace dalle2 {

BlockImpl::BlockImpl(int64_t in, int64_t out, int64_t groups, bool weight_standardization)
    : weight_standardization_(weight_standardization) {
  project_ = register_module("project", make_conv(in, out, 3, 1, 1));
  norm_ = register_module("norm", std::make_shared<torch::nn::GroupNormImpl>(groups, out));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, const at::Tensor& scale_shift) {
  at::Tensor h = weighted_conv(
      x, project_->weight, project_->bias, {.padding = 1, .standardize = weight_standardization_});
  const torch::nn::GroupNormOptions& options = norm_->options;
  if (!scale_shift.defined()) {
    h = at::group_norm(h, options.num_groups(), norm_->weight, norm_->bias, options.eps());
    return at::silu(h);
  }
  // (w n + b) (scale + 1) + shift = n [w (scale + 1)] + [b (scale + 1) + shift]: the brackets are
  // [B, out], so the affine part of the norm costs no pass of its own over the pixels.
  const std::vector<at::Tensor> parts = scale_shift.chunk(2, 1);
  const at::Tensor scale = parts[0] + 1;
  const at::Tensor gain = (scale * norm_->weight).unsqueeze(-1).unsqueeze(-1);
  const at::Tensor shift = at::addcmul(parts[1], scale, norm_->bias).unsqueeze(-1).unsqueeze(-1);
  h = at::group_norm(h, options.num_groups(), {}, {}, options.eps());
  // Under autocast the norm's weights are float32 and its output may be half: the output decides,
  // as in the reference, where later norms take their eps from it.
  const at::ScalarType dtype = h.scalar_type();
  return at::silu(at::addcmul(shift.to(dtype), h, gain.to(dtype)));
}

ResnetBlockImpl::ResnetBlockImpl(const ResnetBlockOptions& o) {
  time_mlp_ =
      add_group(*this, "time_mlp")->register_module("1", make_linear(o.time_dim, 2 * o.out));
  if (o.cond_dim) {
    cross_attn_ = register_module(
        "cross_attn",
        std::make_shared<CrossAttentionImpl>(o.out, *o.cond_dim, o.cosine_sim_cross_attn));
  }
  const auto block = [&](int64_t in) {
    return std::make_shared<BlockImpl>(in, o.out, o.groups, o.weight_standardization);
  };
  block1_ = register_module("block1", block(o.in));
  block2_ = register_module("block2", block(o.out));
  if (o.in != o.out) res_conv_ = register_module("res_conv", make_conv(o.in, o.out, 1));
}

at::Tensor ResnetBlockImpl::forward(const at::Tensor& x,
                                    const at::Tensor& silu_time,
                                    const at::Tensor& context) {
  at::Tensor h = block1_->forward(x, time_mlp_->forward(silu_time));
  if (cross_attn_) {
    const at::Tensor attended = cross_attn_->forward(map_to_tokens(h), context);
    h = h + tokens_to_map(attended, h.size(2), h.size(3));
  }
  h = block2_->forward(h);
  return h + (res_conv_ ? res_conv_->forward(x) : x);
}

}  // namespace dalle2
