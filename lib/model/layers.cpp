// SPDX-License-Identifier: MIT
#include "model/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/convolution.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/half_weights.h"
#include "model/frozen_weight.h"

namespace dalle2 {

void check_batch(const char* what, const at::Tensor& t, int64_t batch) {
  if (!t.defined() || (t.dim() > 0 && t.size(0) == batch)) return;
  throw DataError("{} of shape {} for a batch of {}: expected one row for each of its samples",
                  what,
                  shape_text(t.sizes()),
                  batch);
}

std::shared_ptr<torch::nn::Module> add_group(torch::nn::Module& parent, const std::string& name) {
  return parent.register_module(name, std::make_shared<torch::nn::Module>());
}

at::Tensor LinearLayerImpl::forward(const at::Tensor& x) {
  const at::Tensor y = weighted_linear(x, weight, bias);
  // Under autocast y may be half and x not: the layer's own type decides what follows.
  return adapter() ? y + adapter()->forward(x).to(y.scalar_type()) : y;
}

at::Tensor LinearLayerImpl::multiply(
    const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& view) const {
  const at::Tensor product = weighted_bmm(x, view_of_weight(in_half(weight), view));
  if (!adapter()) return product;
  return product + at::bmm(x, view(adapter()->weight()).to(x.scalar_type()));
}

at::Tensor ConvLayerImpl::forward(const at::Tensor& x) {
  return weighted_conv(x,
                       weight,
                       bias,
                       {.stride = options.stride()->at(0),
                        .padding = std::get<torch::ExpandingArray<2>>(options.padding())->at(0)});
}

TokenConvImpl::TokenConvImpl(int64_t in, int64_t out)
    : ConvLayerImpl(torch::nn::Conv2dOptions(in, out, 1).bias(false)) {}

at::Tensor TokenConvImpl::forward(const at::Tensor& tokens) {
  const at::Tensor y = weighted_linear(tokens, in_half(weight).flatten(1), {});
  return adapter() ? y + adapter()->forward(tokens).to(y.scalar_type()) : y;
}

std::shared_ptr<LinearLayerImpl> make_linear(int64_t in, int64_t out, bool bias) {
  return std::make_shared<LinearLayerImpl>(torch::nn::LinearOptions(in, out).bias(bias));
}

std::shared_ptr<ConvLayerImpl> make_conv(
    int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return std::make_shared<ConvLayerImpl>(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
}

at::Tensor in_order_for_convolutions(const at::Tensor& x) {
  return uses_cpu_algorithms(x.device()) ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

void lay_filters_in_order(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& weight : module.parameters()) {
    if (belongs_channels_last(weight)) weight.set_data(in_order_for_convolutions(weight));
  }
}

double norm_eps(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : 1e-3;
}

at::Tensor l2_normalize(const at::Tensor& x) {
  const at::Tensor norm = x.norm(2, {-1}, /*keepdim=*/true);
  return x / norm.clamp_min(norm.scalar_type() == at::kHalf ? 0x1p-14 : 1e-12);
}

GainNormImpl::GainNormImpl(std::vector<int64_t> gain_shape, const NormLayout& layout)
    : by_max_(layout.by_max) {
  g = register_parameter(layout.gamma ? "gamma" : "g", torch::ones(gain_shape));
  if (layout.gamma) register_buffer("beta", torch::zeros(gain_shape));
}

at::Tensor GainNormImpl::forward(const at::Tensor& x) {
  at::Tensor input = x;
  if (by_max_) input = x / x.amax({-1}, /*keepdim=*/true).detach();
  return at::layer_norm(input, {x.size(-1)}, g.reshape({-1}), {}, norm_eps(x.scalar_type()));
}

std::shared_ptr<GainNormImpl> make_norm(int64_t width, const NormLayout& layout) {
  return std::make_shared<GainNormImpl>(std::vector<int64_t>{width}, layout);
}

CrossEmbedImpl::CrossEmbedImpl(int64_t in,
                               int64_t out,
                               std::vector<int64_t> kernels,
                               int64_t stride) {
  std::ranges::sort(kernels);
  const auto group = add_group(*this, "convs");
  int64_t left = out;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const int64_t width = i + 1 < kernels.size() ? out >> (i + 1) : left;
    left -= width;
    const int64_t padding = (kernels[i] - stride) / 2;
    convs_.push_back(group->register_module(std::to_string(i),
                                            make_conv(in, width, kernels[i], stride, padding)));
  }
}

at::Tensor CrossEmbedImpl::forward(const at::Tensor& x) {
  std::vector<at::Tensor> maps;
  maps.reserve(convs_.size());
  for (const auto& conv : convs_) maps.push_back(conv->forward(x));
  return at::cat(maps, 1);
}

DownsampleImpl::DownsampleImpl(int64_t in, int64_t out) {
  conv_ = register_module("1", make_conv(4 * in, out, 1));
}

at::Tensor DownsampleImpl::forward(const at::Tensor& x) {
  // A 1x1 convolution of the unshuffled pixels is a 2x2 convolution of stride 2 of the pixels: the
  // weights [out, (c s1 s2), 1, 1] are [out, c, 2, 2] already.
  const at::Tensor weight = in_half(conv_->weight);
  const at::Tensor kernel = weight.view({weight.size(0), x.size(1), 2, 2});
  return weighted_conv(x, kernel, conv_->bias, {.stride = 2});
}

PixelShuffleUpsampleImpl::PixelShuffleUpsampleImpl(int64_t in, int64_t out) {
  conv_ = add_group(*this, "net")->register_module("0", make_conv(in, 4 * out, 1));
  torch::NoGradGuard no_grad;
  const at::Tensor quarter = torch::empty({out, in, 1, 1});
  torch::nn::init::kaiming_uniform_(quarter);
  conv_->weight.copy_(quarter.repeat_interleave(4, 0));
  conv_->bias.zero_();
}

at::Tensor PixelShuffleUpsampleImpl::forward(const at::Tensor& x) {
  return at::pixel_shuffle(at::silu(conv_->forward(x)), 2);
}

NearestUpsampleImpl::NearestUpsampleImpl(int64_t in, int64_t out) {
  conv_ = register_module("1", make_conv(in, out, 3, 1, 1));
}

at::Tensor NearestUpsampleImpl::forward(const at::Tensor& x) {
  return conv_->forward(at::upsample_nearest2d(x, {2 * x.size(-2), 2 * x.size(-1)}));
}

at::Tensor sinusoidal_embedding(const at::Tensor& t, int64_t dim) {
  const int64_t half = dim / 2;
  D2_CHECK(half >= 2 && dim % 2 == 0, "sinusoidal embedding of width {}: even and 4 or more", dim);
  const at::ScalarType dtype = t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const double step = -std::log(10000.0) / static_cast<double>(half - 1);
  const at::Tensor frequencies = at::exp(at::arange(half, t.options().dtype(dtype)) * step);
  const at::Tensor angles = t.to(dtype).unsqueeze(1) * frequencies.unsqueeze(0);  // [B, dim / 2]
  return at::cat({angles.sin(), angles.cos()}, -1).to(t.scalar_type());
}

}  // namespace dalle2
