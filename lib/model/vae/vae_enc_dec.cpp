// SPDX-License-Identifier: MIT
#include "model/vae/vae_enc_dec.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/convolution.h"
#include "kernels/group_norm_silu.h"
#include "model/attention.h"

namespace dalle2 {
namespace {

constexpr double kLeakySlope = 0.1;
constexpr double kChannelNormEps = 1e-5;
constexpr int64_t kDiscriminatorGroups = 16;
constexpr int64_t kFirstKernel = 5, kHalvingKernel = 4;

std::shared_ptr<ConvLayerImpl> conv_without_bias(int64_t in, int64_t out) {
  return std::make_shared<ConvLayerImpl>(torch::nn::Conv2dOptions(in, out, 1).bias(false));
}

std::shared_ptr<torch::nn::LayerNormImpl> add_layer_norm(torch::nn::Module& parent,
                                                         const char* name,
                                                         int64_t dim) {
  return parent.register_module(
      name, std::make_shared<torch::nn::LayerNormImpl>(torch::nn::LayerNormOptions({dim})));
}

at::Tensor normed(const torch::nn::GroupNormImpl& norm, const at::Tensor& x) {
  return group_norm_of_map(
      x, norm.weight, norm.bias, norm.options.num_groups(), norm.options.eps());
}

constexpr int64_t kDefaultHeadWidth = 64, kDefaultHeads = 8;

/// The value of a layer: one that was given alone is that of the last, and the others have `none`.
template <class T>
T of_layer(const OneOrMany<T>& value, int64_t layer, int64_t layers, T none) {
  if (value.is_one()) return layer == layers - 1 ? value.at(0) : none;
  return value.at(static_cast<size_t>(layer));
}

}  // namespace

at::Tensor leaky(const at::Tensor& x) {
  return at::leaky_relu(x, kLeakySlope);
}

VaeBlockImpl::VaeBlockImpl(int64_t channels, int64_t groups, bool gated) : gated_(gated) {
  const auto net = add_group(*this, "net");
  for (const int first : {0, 3}) {  // the place of a convolution; a gate comes before the norm
    convs_.push_back(net->register_module(
        std::to_string(first), make_conv(channels, (gated ? 2 : 1) * channels, 3, 1, 1)));
    norms_.push_back(
        net->register_module(std::to_string(first + (gated ? 2 : 1)),
                             std::make_shared<torch::nn::GroupNormImpl>(groups, channels)));
  }
  convs_.push_back(net->register_module("6", make_conv(channels, channels, 1)));
}

at::Tensor VaeBlockImpl::forward(const at::Tensor& x) {
  at::Tensor h = x;
  for (size_t i = 0; i < norms_.size(); ++i) {
    h = convs_[i]->forward(h);
    h = gated_ ? normed(*norms_[i], at::glu(h, 1)) : leaky(normed(*norms_[i], h));
  }
  return convs_[2]->forward(h) + x;
}

ContinuousPositionBiasImpl::ContinuousPositionBiasImpl(int64_t dim, int64_t heads) {
  const auto net = add_group(*this, "net");
  linears_.push_back(add_group(*net, "0")->register_module("0", make_linear(2, dim)));
  linears_.push_back(add_group(*net, "1")->register_module("0", make_linear(dim, dim)));
  linears_.push_back(net->register_module("2", make_linear(dim, heads)));
}

at::Tensor ContinuousPositionBiasImpl::forward(int64_t height, int64_t width) {
  const auto options = linears_[0]->weight.options().requires_grad(false).dtype(at::kFloat);
  const at::Tensor rows = at::arange(height, options), columns = at::arange(width, options);
  const at::Tensor places = at::stack(at::meshgrid({rows, columns}, "ij"), -1).view({-1, 2});
  const at::Tensor apart = places.unsqueeze(1) - places.unsqueeze(0);  // [N, N, 2]
  at::Tensor h = apart.sign() * apart.abs().add(1).log();
  h = leaky(linears_[0]->forward(h));
  h = leaky(linears_[1]->forward(h));
  return linears_[2]->forward(h).permute({2, 0, 1});
}

VaeAttentionImpl::VaeAttentionImpl(int64_t dim, int64_t dim_head, int64_t heads)
    : dim_head_(dim_head), heads_(heads) {
  gamma_ = add_group(*this, "pre_norm")->register_parameter("gamma", at::ones({1, dim, 1, 1}));
  position_bias_ =
      register_module("cpb", std::make_shared<ContinuousPositionBiasImpl>(dim / 4, heads));
  to_qkv_ = register_module("to_qkv", conv_without_bias(dim, 3 * heads * dim_head));
  to_out_ = register_module("to_out", conv_without_bias(heads * dim_head, dim));
}

at::Tensor VaeAttentionImpl::forward(const at::Tensor& x) {
  const auto [variance, mean] = at::var_mean(x, at::IntArrayRef{1}, /*unbiased=*/false, true);
  const at::Tensor normed = (x - mean) * (variance + kChannelNormEps).rsqrt() * gamma_;
  // [B, heads, dim_head, H W] each
  const auto qkv =
      to_qkv_->forward(normed).flatten(2).unflatten(1, {3, heads_, dim_head_}).unbind(1);
  const at::Tensor bias = position_bias_->forward(x.size(2), x.size(3)).to(x.scalar_type());
  const at::Tensor logits =
      at::matmul(qkv[0].transpose(-1, -2), qkv[1]) / std::sqrt(static_cast<double>(dim_head_)) +
      bias;
  const at::Tensor mixed = at::matmul(qkv[2], logits.softmax(-1).transpose(-1, -2));
  return to_out_->forward(mixed.flatten(1, 2).unflatten(-1, {x.size(2), x.size(3)})) + x;
}

VaeTransformerImpl::VaeTransformerImpl(
    int64_t dim, int64_t layers, int64_t dim_head, int64_t heads, int64_t ff_mult)
    : dim_head_(dim_head), heads_(heads) {
  const auto all = add_group(*this, "layers");
  for (int64_t number = 0; number < layers; ++number) {
    const auto group = add_group(*all, std::to_string(number));
    const auto attention = add_group(*group, "0"), feed_forward = add_group(*group, "1");
    Layer layer;
    layer.attention_norm = add_layer_norm(*attention, "norm", dim);
    layer.to_qkv =
        attention->register_module("to_qkv", make_linear(dim, 3 * heads * dim_head, false));
    layer.to_out = attention->register_module("to_out", make_linear(heads * dim_head, dim));
    layer.forward_norm = add_layer_norm(*feed_forward, "0", dim);
    layer.widen = feed_forward->register_module("1", make_linear(dim, ff_mult * dim, false));
    layer.narrow = feed_forward->register_module("3", make_linear(ff_mult * dim, dim, false));
    layers_.push_back(std::move(layer));
  }
  norm_ = add_layer_norm(*this, "norm", dim);
}

at::Tensor VaeTransformerImpl::attend(const Layer& layer, const at::Tensor& x) const {
  // [B, heads, N, dim_head] each
  const auto qkv = layer.to_qkv->forward(layer.attention_norm->forward(x))
                       .unflatten(-1, {3, heads_, dim_head_})
                       .permute({2, 0, 3, 1, 4})
                       .unbind(0);
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
  return layer.to_out->forward(mixed.transpose(1, 2).flatten(2));
}

at::Tensor VaeTransformerImpl::forward(at::Tensor x) {
  for (const Layer& layer : layers_) {
    x = attend(layer, x) + x;
    const at::Tensor wide = at::gelu(layer.widen->forward(layer.forward_norm->forward(x)));
    x = layer.narrow->forward(wide) + x;
  }
  return norm_->forward(x);
}

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
    x = leaky(normed(*norms_[layer - 1], convs_[layer]->forward(x)));
  }
  return to_logits_->forward(leaky(mix_->forward(x)));
}

VaeResampleImpl::VaeResampleImpl(int64_t in, int64_t out, bool doubles) {
  if (doubles) {
    double_ =
        register_module("0",
                        std::make_shared<torch::nn::ConvTranspose2dImpl>(
                            torch::nn::ConvTranspose2dOptions(in, out, 4).stride(2).padding(1)));
  } else {
    halve_ = register_module("0", make_conv(in, out, 4, 2, 1));
  }
}

at::Tensor VaeResampleImpl::forward(const at::Tensor& x) {
  if (halve_) return leaky(halve_->forward(x));
  return leaky(transposed_convolution({x, double_->weight, double_->bias}, 2, 1));
}

VaeResnetImpl::VaeResnetImpl(const VaeConfig& config) {
  const int64_t side = config.encdec_first_conv_kernel_size;
  encoders_.emplace_back(make_conv(config.channels, config.dim, side, 1, side / 2));
  to_image_ = make_conv(config.dim, config.channels, 1);
  decoders_.emplace_back(to_image_);  // these from the last to the first
  int64_t before = config.dim;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t mult = config.encdec_layer_mults
                             ? config.encdec_layer_mults->at(static_cast<size_t>(layer))
                             : int64_t{1} << layer;
    const int64_t width = config.dim * mult;
    encoders_.emplace_back(std::make_shared<VaeResampleImpl>(before, width, /*doubles=*/false));
    decoders_.emplace_back(std::make_shared<VaeResampleImpl>(width, before, /*doubles=*/true));
    const bool attends =
        !config.is_muse() && of_layer(config.encdec_use_attn, layer, config.layers, false);
    const auto attention = [&] {
      return std::make_shared<VaeAttentionImpl>(
          width,
          config.encdec_attn_dim_head.value_or(kDefaultHeadWidth),
          config.encdec_attn_heads.value_or(kDefaultHeads));
    };
    if (attends) decoders_.emplace_back(attention());
    const int64_t blocks =
        of_layer(config.encdec_num_resnet_blocks, layer, config.layers, int64_t{0});
    const int64_t groups = config.encdec_resnet_groups;
    for (int64_t block = 0; block < blocks; ++block) {
      encoders_.emplace_back(std::make_shared<VaeBlockImpl>(width, groups, /*gated=*/false));
      decoders_.emplace_back(std::make_shared<VaeBlockImpl>(width, groups, /*gated=*/true));
    }
    if (attends) encoders_.emplace_back(attention());
    before = width;
  }
  std::ranges::reverse(decoders_);
  const auto add_all = [this](const char* name, const std::vector<torch::nn::AnyModule>& stages) {
    const auto group = add_group(*this, name);
    for (size_t place = 0; place < stages.size(); ++place) {
      group->register_module(std::to_string(place), stages[place].ptr());
    }
  };
  add_all("encoders", encoders_);
  add_all("decoders", decoders_);
}

at::Tensor VaeResnetImpl::encode(const at::Tensor& images) {
  at::Tensor x = in_order_for_convolutions(images);
  for (torch::nn::AnyModule& stage : encoders_) x = stage.forward(x);
  return x;
}

at::Tensor VaeResnetImpl::decode(const at::Tensor& map) {
  at::Tensor x = in_order_for_convolutions(map);
  for (torch::nn::AnyModule& stage : decoders_) x = stage.forward(x);
  return x;
}

VaeVitImpl::VaeVitImpl(const VaeConfig& config)
    : channels_(config.channels), patch_size_(config.encdec_patch_size) {
  const int64_t pixels = channels_ * patch_size_ * patch_size_;
  const auto transformer = [&] {
    return std::make_shared<VaeTransformerImpl>(config.dim,
                                                config.layers,
                                                config.encdec_dim_head,
                                                config.encdec_heads,
                                                config.encdec_ff_mult);
  };
  const auto encoder = add_group(*this, "encoder"), decoder = add_group(*this, "decoder");
  from_pixels_ = encoder->register_module("1", make_linear(pixels, config.dim));
  encoder_ = encoder->register_module("2", transformer());
  decoder_ = decoder->register_module("1", transformer());
  const auto last = add_group(*decoder, "2");
  widen_ = last->register_module("0", make_linear(config.dim, 4 * config.dim, false));
  to_pixels_ = last->register_module("2", make_linear(4 * config.dim, pixels, false));
}

at::Tensor VaeVitImpl::encode(const at::Tensor& images) {
  const int64_t rows = images.size(2) / patch_size_, columns = images.size(3) / patch_size_;
  const at::Tensor patches = images.unflatten(3, {columns, patch_size_})
                                 .unflatten(2, {rows, patch_size_})
                                 .permute({0, 2, 4, 3, 5, 1})  // [B, h, w, p1, p2, C]
                                 .reshape({images.size(0), rows * columns, -1});
  return tokens_to_map(encoder_->forward(from_pixels_->forward(patches)), rows, columns);
}

at::Tensor VaeVitImpl::decode(const at::Tensor& map) {
  const at::Tensor tokens = decoder_->forward(map_to_tokens(map));
  const at::Tensor patches = to_pixels_->forward(widen_->forward(tokens).tanh());
  return patches.view({map.size(0), map.size(2), map.size(3), patch_size_, patch_size_, channels_})
      .permute({0, 5, 1, 3, 2, 4})  // [B, C, h, p1, w, p2]
      .reshape({map.size(0), channels_, map.size(2) * patch_size_, map.size(3) * patch_size_});
}

std::shared_ptr<VaeEncDecImpl> make_vae_enc_dec(const VaeConfig& config) {
  if (config.is_vit()) return std::make_shared<VaeVitImpl>(config);
  return std::make_shared<VaeResnetImpl>(config);
}

}  // namespace dalle2
