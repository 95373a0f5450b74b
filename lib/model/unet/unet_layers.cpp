// SPDX-License-Identifier: MIT
// Construction of a Unet. The order of registration is the order in files.
#include "model/unet/unet_layers.h"

#include <string>

#include "kernels/group_norm_silu.h"
#include "model/frozen_weight.h"

namespace dalle2 {
namespace {

std::vector<UnetLevel> levels_of(const UnetConfig& config) {
  std::vector<UnetLevel> levels;
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
    levels.push_back(level);
    in = level.out;
  }
  return levels;
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

ResnetBlockImpl::ResnetBlockImpl(
    const UnetConfig& config, int64_t in, int64_t out, int64_t groups, bool cond) {
  time_mlp =
      add_group(*this, "time_mlp")->register_module("1", make_linear(time_dim(config), 2 * out));
  if (cond) {
    const auto attention = std::make_shared<CrossAttentionImpl>(
        out, cond_dim(config), config.cosine_sim_cross_attn, config.layout);
    cross_attn_ = config.layout.wrapped_cross_attn
                      ? add_group(*this, "cross_attn")->register_module("fn", attention)
                      : register_module("cross_attn", attention);
  }
  const auto block = [&](int64_t block_in) {
    return std::make_shared<BlockImpl>(block_in, out, groups, config.resnet_weight_standardization);
  };
  block1_ = register_module("block1", block(in));
  block2_ = register_module("block2", block(out));
  if (in != out) res_conv_ = register_module("res_conv", make_conv(in, out, 1));
}

at::Tensor ResnetBlockImpl::forward(const at::Tensor& x,
                                    const at::Tensor& scale_shift,
                                    const at::Tensor& context) {
  at::Tensor h = block1_->forward(x, scale_shift);
  if (cross_attn_) h = cross_attn_->add_to(h, context);
  h = block2_->forward(h);
  return h + (res_conv_ ? res_conv_->forward(x) : x);
}

using torch::nn::AnyModule;

UnetLayers::UnetLayers(UnetImpl& unet, const UnetConfig& unet_config)
    : config(unet_config), levels(levels_of(unet_config)) {
  add_parameters(unet);
  add_embeddings(unet);
  add_levels(unet);
  add_end(unet);
}

void UnetLayers::add_parameters(UnetImpl& unet) {
  const int64_t width = cond_dim(config);
  null_image_embed = unet.register_parameter("null_image_embed",
                                             torch::randn({1, config.num_image_tokens, width}));
  null_image_hiddens =
      unet.register_parameter("null_image_hiddens", torch::randn({1, time_dim(config)}));
  null_text_embed =
      unet.register_parameter("null_text_embed", torch::randn({1, config.max_text_len, width}));
}

void UnetLayers::add_embeddings(UnetImpl& unet) {
  const auto linear_in = [&](const char* group, const char* key, int64_t in, int64_t out) {
    return add_group(unet, group)->register_module(key, make_linear(in, out));
  };
  // Image, self conditioning and low-res image together.
  const int64_t images = 1 + (config.lowres_cond ? 1 : 0) + (config.self_cond ? 1 : 0);
  const int64_t channels_in = config.channels * images;
  if (config.init_cross_embed) {
    init_conv = AnyModule(unet.register_module(
        "init_conv",
        std::make_shared<CrossEmbedImpl>(
            channels_in, config.dim, config.init_cross_embed_kernel_sizes, 1)));
  } else {
    const int64_t kernel = config.init_conv_kernel_size;
    init_conv = AnyModule(unet.register_module(
        "init_conv", make_conv(channels_in, config.dim, kernel, 1, kernel / 2)));
  }
  const int64_t hidden = time_dim(config), width = cond_dim(config);
  to_time_hiddens = linear_in("to_time_hiddens", "1", config.dim, hidden);
  to_time_tokens = linear_in("to_time_tokens", "0", hidden, width * config.num_time_tokens);
  to_time_cond = linear_in("to_time_cond", "0", hidden, hidden);
  if (config.cond_on_image_embeds) {
    const int64_t image_dim = *config.image_embed_dim;
    // As wide as a token already: the embedding itself is every token.
    if (image_dim != width) {
      image_to_tokens =
          linear_in("image_to_tokens", "0", image_dim, width * config.num_image_tokens);
    }
    if (config.add_image_embeds_to_time) {
      to_image_hiddens = linear_in("to_image_hiddens", "0", image_dim, hidden);
    }
  }
  const auto layer_norm = [width] {
    return std::make_shared<torch::nn::LayerNormImpl>(
        torch::nn::LayerNormOptions(std::vector<int64_t>{width}));
  };
  norm_cond = unet.register_module("norm_cond", layer_norm());
  norm_mid_cond = unet.register_module("norm_mid_cond", layer_norm());
  if (config.cond_on_text_encodings.value_or(false)) {
    text_to_cond = unet.register_module("text_to_cond", make_linear(*config.text_embed_dim, width));
  }
  if (config.lowres_noise_cond) {
    const auto group = add_group(unet, "to_lowres_noise_cond");
    lowres_noise_in = group->register_module("1", make_linear(config.dim, hidden));
    lowres_noise_out = group->register_module("3", make_linear(hidden, hidden));
  }
}

namespace {

template <class Module>
AnyModule add(torch::nn::Module& group, const std::string& name, std::shared_ptr<Module> module) {
  return AnyModule(group.register_module(name, std::move(module)));
}

AnyModule add_attention(torch::nn::Module& group,
                        const std::string& name,
                        const UnetConfig& config,
                        int64_t width,
                        bool self_attn) {
  const int64_t heads = config.attn_heads, dim_head = config.attn_dim_head;
  if (self_attn) {
    return add(group,
               name,
               std::make_shared<MapAttentionImpl>(
                   width, heads, dim_head, config.cosine_sim_self_attn, config.layout));
  }
  if (!config.sparse_attn) return AnyModule();
  return add(
      group, name, std::make_shared<LinearAttentionImpl>(width, heads, dim_head, config.layout));
}

AnyModule add_downsample(torch::nn::Module& group,
                         const std::string& name,
                         const UnetConfig& config,
                         int64_t in,
                         int64_t out) {
  if (config.cross_embed_downsample) {
    const auto& kernels = config.cross_embed_downsample_kernel_sizes;
    return add(group, name, std::make_shared<CrossEmbedImpl>(in, out, kernels, 2));
  }
  if (config.layout.strided_down) return add(group, name, make_conv(in, out, 4, 2, 1));
  return add(group, name, std::make_shared<DownsampleImpl>(in, out));
}

AnyModule add_upsample(torch::nn::Module& group, const UnetConfig& config, const UnetLevel& level) {
  const int64_t in = level.out, out = level.in;
  if (!config.pixel_shuffle_upsample) {
    return add(group, "3", std::make_shared<NearestUpsampleImpl>(in, out));
  }
  if (!config.layout.transposed_up) {
    return add(group, "3", std::make_shared<PixelShuffleUpsampleImpl>(in, out));
  }
  return add(group,
             "3",
             std::make_shared<torch::nn::ConvTranspose2dImpl>(
                 torch::nn::ConvTranspose2dOptions(in, out, 4).stride(2).padding(1)));
}

// Under the keys from `place` on: the first block, the others, the attention. The last two change
// places with the layout's attention_first.
void add_blocks(UnetStage& made,
                torch::nn::Module& group,
                int place,
                const UnetConfig& config,
                const UnetLevel& level,
                int64_t in,
                int64_t out,
                bool first_has_cond) {
  made.first = group.register_module(
      std::to_string(place),
      std::make_shared<ResnetBlockImpl>(config, in, out, level.groups, first_has_cond));
  made.attention_first = config.layout.attention_first;
  const auto attend = [&](int at) {
    made.attention = add_attention(group, std::to_string(at), config, out, level.self_attn);
  };
  if (made.attention_first) attend(place + 1);
  const auto blocks = add_group(group, std::to_string(place + (made.attention_first ? 2 : 1)));
  for (int64_t i = 0; i < level.num_blocks; ++i) {
    made.blocks.push_back(blocks->register_module(
        std::to_string(i),
        std::make_shared<ResnetBlockImpl>(config, in, out, level.groups, !level.first)));
  }
  if (!made.attention_first) attend(place + 2);
}

// Keys 0 before, 1 to 3 blocks and attention, 4 after; absent ones leave gaps.
UnetStage down(torch::nn::Module& group, const UnetConfig& config, const UnetLevel& level) {
  UnetStage made;
  const int64_t width = level.width;
  if (config.memory_efficient) made.pre = add_downsample(group, "0", config, level.in, level.out);
  add_blocks(made, group, 1, config, level, width, width, false);
  made.post = level.last || config.memory_efficient
                  ? add(group, "4", make_conv(width, level.out, 1))
                  : add_downsample(group, "4", config, width, level.out);
  return made;
}

// Keys 0 to 2 blocks and attention, 3 after.
UnetStage up(torch::nn::Module& group, const UnetConfig& config, const UnetLevel& level) {
  UnetStage made;
  add_blocks(made, group, 0, config, level, level.out + level.width, level.out, !level.first);
  if (!level.first || config.memory_efficient) made.post = add_upsample(group, config, level);
  return made;
}

}  // namespace

void UnetLayers::add_levels(UnetImpl& unet) {
  const auto add_block = [&](const char* name, int64_t width, const UnetLevel& level, bool cond) {
    return unet.register_module(
        name, std::make_shared<ResnetBlockImpl>(config, width, width, level.groups, cond));
  };
  const UnetLevel& bottom = levels.back();
  if (config.memory_efficient) {
    init_resnet_block = add_block("init_resnet_block", config.dim, levels.front(), false);
  }
  const auto down_group = add_group(unet, "downs");
  const auto up_group = add_group(unet, "ups");
  for (size_t i = 0; i < levels.size(); ++i) {
    downs.push_back(down(*add_group(*down_group, std::to_string(i)), config, levels[i]));
  }
  mid_block1 = add_block("mid_block1", bottom.out, bottom, true);
  // Until 0.15.2 the option decided on it.
  if (config.attend_at_middle || !config.layout.attention_first) {
    mid_attn = add_attention(unet, "mid_attn", config, bottom.out, /*self_attn=*/true);
  }
  mid_block2 = add_block("mid_block2", bottom.out, bottom, true);
  for (size_t i = 0; i < levels.size(); ++i) {
    const UnetLevel& level = levels[levels.size() - 1 - i];
    ups.push_back(up(*add_group(*up_group, std::to_string(i)), config, level));
  }
}

void UnetLayers::add_end(UnetImpl& unet) {
  const int64_t dim = config.dim;
  int64_t joined = dim;
  const auto combiner_group = add_group(unet, "upsample_combiner");
  if (config.combine_upsample_fmaps) {
    const auto convs = add_group(*combiner_group, "fmap_convs");
    for (size_t i = 0; i < levels.size(); ++i) {
      const UnetLevel& level = levels[levels.size() - 1 - i];
      combiner.push_back(convs->register_module(
          std::to_string(i), std::make_shared<BlockImpl>(level.out, dim, /*groups=*/8)));
      joined += dim;
    }
  }
  final_resnet_block = unet.register_module(
      "final_resnet_block",
      std::make_shared<ResnetBlockImpl>(config, joined + dim, dim, levels.front().groups, false));
  const int64_t kernel = config.final_conv_kernel_size;
  const int64_t in =
      dim + (config.lowres_cond && config.layout.lowres_at_end ? config.channels : 0);
  const int64_t out = config.channels_out.value_or(config.channels);
  to_out = unet.register_module("to_out", make_conv(in, out, kernel, 1, kernel / 2));
  torch::NoGradGuard no_grad;
  to_out->weight.zero_();
  to_out->bias.zero_();
}

}  // namespace dalle2
