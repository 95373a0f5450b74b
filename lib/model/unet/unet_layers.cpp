// SPDX-License-Identifier: MIT
// Construction of a Unet. The order of registration is the order in files.
#include "model/unet/unet_layers.h"

#include <string>

#include "config/decoder/decoder_config.h"
#include "config/reading/faults.h"
#include "kernels/group_norm_silu.h"
#include "model/frozen_weight.h"

namespace dalle2 {
namespace {

// A plan has passed these checks already, but a unet may be built without one.
void check(const UnetConfig& config) {
  Faults faults;
  check_unet_shape(config, "", faults);
  if (config.cond_on_image_embeds && !config.image_embed_dim) {
    faults.error("/image_embed_dim", "is needed by a unet conditioned on image embeddings");
  }
  if (config.cond_on_text_encodings.value_or(false) && !config.text_embed_dim) {
    faults.error("/text_embed_dim", "is needed with cond_on_text_encodings");
  }
  faults.throw_if_any("unet");
}

}  // namespace

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
    const auto attention =
        std::make_shared<CrossAttentionImpl>(o.out, *o.cond_dim, o.cosine_sim_cross_attn, o.layout);
    cross_attn_ = o.layout.wrapped_cross_attn
                      ? add_group(*this, "cross_attn")->register_module("fn", attention)
                      : register_module("cross_attn", attention);
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

using torch::nn::AnyModule;

UnetShape unet_shape(const UnetConfig& config) {
  check(config);
  UnetShape shape;
  int64_t in = config.dim;
  for (size_t i = 0; i < config.dim_mults.size(); ++i) {
    UnetLevel level;
    level.in = in;
    level.out = config.dim * config.dim_mults[i];
    level.width = config.memory_efficient ? level.out : level.in;
    level.groups = config.resnet_groups.at(i);
    level.num_blocks = config.num_resnet_blocks.at(i);
    level.self_attn = config.self_attn.at(i);
    level.first = i == 0;
    level.last = i + 1 == config.dim_mults.size();
    shape.levels.push_back(level);
    in = level.out;
  }
  const int64_t images = 1 + (config.lowres_cond ? 1 : 0) + (config.self_cond ? 1 : 0);
  shape.channels_in = config.channels * images;
  shape.channels_out = config.channels_out.value_or(config.channels);
  shape.cond_dim = config.cond_dim.value_or(config.dim);
  shape.time_dim = 4 * config.dim;
  shape.mid_dim = in;
  shape.halvings = halvings(config);
  return shape;
}

UnetLayers::UnetLayers(UnetImpl& unet, const UnetConfig& unet_config)
    : config(unet_config), shape(unet_shape(unet_config)) {
  add_parameters(unet);
  add_embeddings(unet);
  add_levels(unet);
  add_end(unet);
}

void UnetLayers::add_parameters(UnetImpl& unet) {
  null_image_embed = unet.register_parameter(
      "null_image_embed", torch::randn({1, config.num_image_tokens, shape.cond_dim}));
  null_image_hiddens =
      unet.register_parameter("null_image_hiddens", torch::randn({1, shape.time_dim}));
  null_text_embed = unet.register_parameter("null_text_embed",
                                            torch::randn({1, config.max_text_len, shape.cond_dim}));
}

void UnetLayers::add_embeddings(UnetImpl& unet) {
  const auto linear_in = [&](const char* group, const char* key, int64_t in, int64_t out) {
    return add_group(unet, group)->register_module(key, make_linear(in, out));
  };
  if (config.init_cross_embed) {
    init_conv = AnyModule(unet.register_module(
        "init_conv",
        std::make_shared<CrossEmbedImpl>(
            shape.channels_in, config.dim, config.init_cross_embed_kernel_sizes, 1)));
  } else {
    const int64_t kernel = config.init_conv_kernel_size;
    init_conv = AnyModule(unet.register_module(
        "init_conv", make_conv(shape.channels_in, config.dim, kernel, 1, kernel / 2)));
  }
  const int64_t time_dim = shape.time_dim;
  to_time_hiddens = linear_in("to_time_hiddens", "1", config.dim, time_dim);
  to_time_tokens =
      linear_in("to_time_tokens", "0", time_dim, shape.cond_dim * config.num_time_tokens);
  to_time_cond = linear_in("to_time_cond", "0", time_dim, time_dim);
  if (config.cond_on_image_embeds) {
    const int64_t image_dim = *config.image_embed_dim;
    // As wide as a token already: the embedding itself is every token.
    if (image_dim != shape.cond_dim) {
      image_to_tokens =
          linear_in("image_to_tokens", "0", image_dim, shape.cond_dim * config.num_image_tokens);
    }
    if (config.add_image_embeds_to_time) {
      to_image_hiddens = linear_in("to_image_hiddens", "0", image_dim, time_dim);
    }
  }
  const int64_t width = shape.cond_dim;
  const auto layer_norm = [width] {
    return std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions(std::vector<int64_t>{width}));
  };
  norm_cond = unet.register_module("norm_cond", layer_norm());
  norm_mid_cond = unet.register_module("norm_mid_cond", layer_norm());
  if (config.cond_on_text_encodings.value_or(false)) {
    text_to_cond =
        unet.register_module("text_to_cond", make_linear(*config.text_embed_dim, shape.cond_dim));
  }
  if (config.lowres_noise_cond) {
    const auto group = add_group(unet, "to_lowres_noise_cond");
    lowres_noise_in = group->register_module("1", make_linear(config.dim, time_dim));
    lowres_noise_out = group->register_module("3", make_linear(time_dim, time_dim));
  }
}

std::shared_ptr<ResnetBlockImpl> UnetLayers::block(int64_t in,
                                                   int64_t out,
                                                   int64_t groups,
                                                   bool cond) const {
  ResnetBlockOptions options;
  options.in = in;
  options.out = out;
  options.time_dim = shape.time_dim;
  options.groups = groups;
  if (cond) options.cond_dim = shape.cond_dim;
  options.weight_standardization = config.resnet_weight_standardization;
  options.cosine_sim_cross_attn = config.cosine_sim_cross_attn;
  options.layout = config.layout;
  return std::make_shared<ResnetBlockImpl>(options);
}

AnyModule UnetLayers::attention(torch::nn::Module& group,
                                const UnetLevel& level,
                                int64_t width,
                                const char* name) const {
  if (level.self_attn) {
    return AnyModule(
        group.register_module(name,
                              std::make_shared<MapAttentionImpl>(width,
                                                                 config.attn_heads,
                                                                 config.attn_dim_head,
                                                                 config.cosine_sim_self_attn,
                                                                 config.layout)));
  }
  if (config.sparse_attn) {
    return AnyModule(
        group.register_module(name,
                              std::make_shared<LinearAttentionImpl>(
                                  width, config.attn_heads, config.attn_dim_head, config.layout)));
  }
  return AnyModule();
}

AnyModule UnetLayers::downsample(torch::nn::Module& group,
                                 const char* name,
                                 int64_t in,
                                 int64_t out) const {
  if (config.cross_embed_downsample) {
    return AnyModule(group.register_module(
        name,
        std::make_shared<CrossEmbedImpl>(in, out, config.cross_embed_downsample_kernel_sizes, 2)));
  }
  if (config.layout.strided_down) {
    return AnyModule(group.register_module(name, make_strided_downsample(in, out)));
  }
  return AnyModule(group.register_module(name, std::make_shared<DownsampleImpl>(in, out)));
}

AnyModule UnetLayers::upsample(torch::nn::Module& group, const UnetLevel& level) const {
  if (!config.pixel_shuffle_upsample) {
    return AnyModule(
        group.register_module("3", std::make_shared<NearestUpsampleImpl>(level.out, level.in)));
  }
  if (config.layout.transposed_up) {
    return AnyModule(
        group.register_module("3", std::make_shared<TransposedUpsampleImpl>(level.out, level.in)));
  }
  return AnyModule(
      group.register_module("3", std::make_shared<PixelShuffleUpsampleImpl>(level.out, level.in)));
}

// Keys 0 before, 1 first block, 2 blocks, 3 attention (2 and 3 change places with the layout's
// attention_first), 4 after; absent ones leave gaps.
UnetStage UnetLayers::down(torch::nn::Module& group, const UnetLevel& level) const {
  UnetStage made;
  if (config.memory_efficient) made.pre = downsample(group, "0", level.in, level.out);
  made.first = group.register_module("1", block(level.width, level.width, level.groups, false));
  made.attention_first = config.layout.attention_first;
  if (made.attention_first) made.attention = attention(group, level, level.width, "2");
  const auto blocks = add_group(group, made.attention_first ? "3" : "2");
  for (int64_t i = 0; i < level.num_blocks; ++i) {
    made.blocks.push_back(blocks->register_module(
        std::to_string(i), block(level.width, level.width, level.groups, !level.first)));
  }
  if (!made.attention_first) made.attention = attention(group, level, level.width, "3");
  if (level.last || config.memory_efficient) {
    made.post = AnyModule(group.register_module("4", make_conv(level.width, level.out, 1)));
  } else {
    made.post = downsample(group, "4", level.width, level.out);
  }
  return made;
}

// Keys 0 first block, 1 blocks, 2 attention (or the other way), 3 after.
UnetStage UnetLayers::up(torch::nn::Module& group, const UnetLevel& level) const {
  UnetStage made;
  const auto joined = [&] {
    return block(level.out + level.width, level.out, level.groups, !level.first);
  };
  made.first = group.register_module("0", joined());
  made.attention_first = config.layout.attention_first;
  if (made.attention_first) made.attention = attention(group, level, level.out, "1");
  const auto blocks = add_group(group, made.attention_first ? "2" : "1");
  for (int64_t i = 0; i < level.num_blocks; ++i) {
    made.blocks.push_back(blocks->register_module(std::to_string(i), joined()));
  }
  if (!made.attention_first) made.attention = attention(group, level, level.out, "2");
  if (!level.first || config.memory_efficient) made.post = upsample(group, level);
  return made;
}

void UnetLayers::add_levels(UnetImpl& unet) {
  const UnetLevel& top = shape.levels.front();
  const UnetLevel& bottom = shape.levels.back();
  if (config.memory_efficient) {
    init_resnet_block =
        unet.register_module("init_resnet_block", block(config.dim, config.dim, top.groups, false));
  }
  const auto down_group = add_group(unet, "downs");
  const auto up_group = add_group(unet, "ups");
  for (size_t i = 0; i < shape.levels.size(); ++i) {
    downs.push_back(down(*add_group(*down_group, std::to_string(i)), shape.levels[i]));
  }
  const int64_t mid = shape.mid_dim;
  mid_block1 = unet.register_module("mid_block1", block(mid, mid, bottom.groups, true));
  // Until 0.15.2 the option decided on it.
  if (config.attend_at_middle || !config.layout.attention_first) {
    mid_attn = unet.register_module("mid_attn",
                                    std::make_shared<MapAttentionImpl>(mid,
                                                                       config.attn_heads,
                                                                       config.attn_dim_head,
                                                                       config.cosine_sim_self_attn,
                                                                       config.layout));
  }
  mid_block2 = unet.register_module("mid_block2", block(mid, mid, bottom.groups, true));
  for (size_t i = 0; i < shape.levels.size(); ++i) {
    const UnetLevel& level = shape.levels[shape.levels.size() - 1 - i];
    ups.push_back(up(*add_group(*up_group, std::to_string(i)), level));
  }
}

void UnetLayers::add_end(UnetImpl& unet) {
  const int64_t dim = config.dim;
  int64_t joined = dim;
  const auto combiner_group = add_group(unet, "upsample_combiner");
  if (config.combine_upsample_fmaps) {
    const auto convs = add_group(*combiner_group, "fmap_convs");
    for (size_t i = 0; i < shape.levels.size(); ++i) {
      const UnetLevel& level = shape.levels[shape.levels.size() - 1 - i];
      combiner.push_back(convs->register_module(
          std::to_string(i), std::make_shared<BlockImpl>(level.out, dim, /*groups=*/8)));
      joined += dim;
    }
  }
  final_resnet_block = unet.register_module(
      "final_resnet_block", block(joined + dim, dim, shape.levels.front().groups, false));
  const int64_t kernel = config.final_conv_kernel_size;
  const int64_t in =
      dim + (config.lowres_cond && config.layout.lowres_at_end ? config.channels : 0);
  to_out = unet.register_module("to_out", make_conv(in, shape.channels_out, kernel, 1, kernel / 2));
  torch::NoGradGuard no_grad;
  to_out->weight.zero_();
  to_out->bias.zero_();
}

}  // namespace dalle2
