// SPDX-License-Identifier: MIT
#include "model/unet/resnet.h"

#include "kernels/group_norm_silu.h"
#include "model/frozen_weight.h"

namespace dalle2 {

BlockImpl::BlockImpl(int64_t in, int64_t out, int64_t groups, bool weight_standardization)
    : weight_standardization_(weight_standardization) {
  project_ = register_module("project", make_conv(in, out, 3, 1, 1));
  norm_ = register_module("norm", std::make_shared<torch::nn::GroupNormImpl>(groups, out));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, const at::Tensor& scale_shift) {
  const at::Tensor h = weighted_conv(
      x, project_->weight, project_->bias, {.padding = 1, .standardize = weight_standardization_});
  return group_norm_silu({h, norm_->weight, norm_->bias, scale_shift},
                         norm_->options.num_groups(),
                         norm_->options.eps());
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
