// SPDX-License-Identifier: MIT
#include "model/vae/vae_enc_dec.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/convolution.h"
#include "model/attention.h"

namespace dalle2 {
namespace {

constexpr int64_t kDefaultHeadWidth = 64, kDefaultHeads = 8;

/// The value of a layer: one that was given alone is that of the last, and the others have `none`.
template <class T>
T of_layer(const OneOrMany<T>& value, int64_t layer, int64_t layers, T none) {
  if (value.is_one()) return layer == layers - 1 ? value.at(0) : none;
  return value.at(static_cast<size_t>(layer));
}

}  // namespace

template <class Block>
VaeResnetImpl::Made VaeResnetImpl::make(std::shared_ptr<Block> block) {
  return {block, [block](const at::Tensor& x) { return block->forward(x); }};
}

VaeResnetImpl::Made VaeResnetImpl::activated(std::shared_ptr<torch::nn::Module> group, Stage conv) {
  return {std::move(group),
          [conv = std::move(conv)](const at::Tensor& x) { return leaky(conv(x)); }};
}

void VaeResnetImpl::add_all(const char* name,
                            const std::vector<Made>& made,
                            std::vector<Stage>& stages) {
  const auto group = add_group(*this, name);
  for (size_t place = 0; place < made.size(); ++place) {
    group->register_module(std::to_string(place), made[place].module);
    stages.push_back(made[place].stage);
  }
}

VaeResnetImpl::VaeResnetImpl(const VaeConfig& config) {
  std::vector<Made> encoders, from_end;  // the decoder's, last first
  const int64_t side = config.encdec_first_conv_kernel_size;
  encoders.push_back(make(make_conv(config.channels, config.dim, side, 1, side / 2)));
  to_image_ = make_conv(config.dim, config.channels, 1);
  from_end.push_back(make(to_image_));
  int64_t before = config.dim;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t mult = config.encdec_layer_mults
                             ? config.encdec_layer_mults->at(static_cast<size_t>(layer))
                             : int64_t{1} << layer;
    const int64_t width = config.dim * mult;
    const auto down = std::make_shared<torch::nn::Module>(),
               up = std::make_shared<torch::nn::Module>();
    const auto halve = down->register_module("0", make_conv(before, width, 4, 2, 1));
    const auto twice = up->register_module(
        "0",
        std::make_shared<torch::nn::ConvTranspose2dImpl>(
            torch::nn::ConvTranspose2dOptions(width, before, 4).stride(2).padding(1)));
    encoders.push_back(activated(down, [halve](const at::Tensor& x) { return halve->forward(x); }));
    from_end.push_back(activated(up, [twice](const at::Tensor& x) {
      return transposed_convolution({x, twice->weight, twice->bias}, 2, 1);
    }));
    const bool attends =
        !config.is_muse() && of_layer(config.encdec_use_attn, layer, config.layers, false);
    const auto attention = [&] {
      return make(std::make_shared<VaeAttentionImpl>(
          width,
          config.encdec_attn_dim_head.value_or(kDefaultHeadWidth),
          config.encdec_attn_heads.value_or(kDefaultHeads)));
    };
    if (attends) from_end.push_back(attention());
    const int64_t blocks =
        of_layer(config.encdec_num_resnet_blocks, layer, config.layers, int64_t{0});
    const int64_t groups = config.encdec_resnet_groups;
    for (int64_t block = 0; block < blocks; ++block) {
      encoders.push_back(make(std::make_shared<VaeBlockImpl>(width, groups, /*gated=*/false)));
      from_end.push_back(make(std::make_shared<VaeBlockImpl>(width, groups, /*gated=*/true)));
    }
    if (attends) encoders.push_back(attention());
    before = width;
  }
  std::reverse(from_end.begin(), from_end.end());
  add_all("encoders", encoders, encoders_);
  add_all("decoders", from_end, decoders_);
}

at::Tensor VaeResnetImpl::encode(const at::Tensor& images) {
  at::Tensor x = in_order_for_convolutions(images);
  for (const Stage& stage : encoders_) x = stage(x);
  return x;
}

at::Tensor VaeResnetImpl::decode(const at::Tensor& map) {
  at::Tensor x = in_order_for_convolutions(map);
  for (const Stage& stage : decoders_) x = stage(x);
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
