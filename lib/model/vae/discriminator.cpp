// SPDX-License-Identifier: MIT
#include "model/vae/discriminator.h"

#include <string>

#include "model/vae/vae_layers.h"

namespace dalle2 {
namespace {

constexpr int64_t kDiscriminatorGroups = 16;
constexpr int64_t kFirstKernel = 5, kHalvingKernel = 4;

}  // namespace

DiscriminatorImpl::DiscriminatorImpl(int64_t dim, int64_t layers, int64_t channels) {
  const auto all = add_group(*this, "layers");
  convs_.push_back(add_group(*all, "0")->register_module(
      "0", make_conv(channels, dim, kFirstKernel, 1, kFirstKernel / 2)));
  int64_t before = dim;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t width = dim << layer;
    const auto group = add_group(*all, std::to_string(layer + 1));
    convs_.push_back(group->register_module("0", make_conv(before, width, kHalvingKernel, 2, 1)));
    norms_.push_back(group->register_module(
        "1", std::make_shared<torch::nn::GroupNormImpl>(kDiscriminatorGroups, width)));
    before = width;
  }
  const auto logits = add_group(*this, "to_logits");
  mix_ = logits->register_module("0", make_conv(before, before, 1));
  to_logits_ = logits->register_module("2", make_conv(before, 1, kHalvingKernel));
}

at::Tensor DiscriminatorImpl::forward(const at::Tensor& images) {
  at::Tensor x = leaky(convs_[0]->forward(in_order_for_convolutions(images)));
  for (size_t layer = 1; layer < convs_.size(); ++layer) {
    x = leaky(norms_[layer - 1]->forward(convs_[layer]->forward(x)));
  }
  return to_logits_->forward(leaky(mix_->forward(x)));
}

}  // namespace dalle2
