// SPDX-License-Identifier: MIT
#include "model/unet/unet.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/half_weights.h"
#include "model/unet/recompute.h"
#include "model/unet/unet_layers.h"

namespace dalle2 {

using torch::nn::AnyModule;

namespace {

at::Tensor apply(AnyModule& module, const at::Tensor& x) {
  return module.is_empty() ? x : module.forward(x);
}

}  // namespace

at::Tensor UnetLayers::run(const std::shared_ptr<ResnetBlockImpl>& block,
                           const at::Tensor& x,
                           const UnetEmbedded& e,
                           const at::Tensor& context,
                           bool recomputes) const {
  const auto found = e.scale_shifts.find(block.get());
  const bool joined = found != e.scale_shifts.end();
  const auto forward = [block, joined](const std::vector<at::Tensor>& in) {
    return block->forward(in[0], joined ? in[1] : block->time_mlp->forward(in[1]), in[2]);
  };
  const std::vector<at::Tensor> in = {x, joined ? found->second : e.silu_time, context};
  return recomputes ? recompute_in_backward(forward, in, block->parameters()) : forward(in);
}

at::Tensor UnetLayers::run_attention(AnyModule& attention,
                                     const at::Tensor& x,
                                     bool recomputes) const {
  if (attention.is_empty() || !recomputes) return apply(attention, x);
  return recompute_in_backward(
      [copy = attention](const std::vector<at::Tensor>& in) mutable { return apply(copy, in[0]); },
      {x},
      attention.ptr()->parameters());
}

at::Tensor UnetLayers::trunk(at::Tensor x, const UnetEmbedded& e, bool keeps_gradients) {
  bool recomputes = false;  // the level under way
  const auto enter_level = [&](size_t level) {
    recomputes = keeps_gradients && static_cast<int64_t>(level) < recomputed_levels;
  };
  const at::Tensor input = x;
  enter_level(0);
  if (init_resnet_block) x = run(init_resnet_block, x, e, e.context, recomputes);

  std::vector<at::Tensor> skips;  // num_blocks + 1 a level
  for (size_t i = 0; i < downs.size(); ++i) {
    UnetStage& level = downs[i];
    enter_level(i);
    x = apply(level.pre, x);
    x = run(level.first, x, e, e.context, recomputes);
    const auto attend = [&] {
      x = run_attention(level.attention, x, recomputes);
      skips.push_back(x);
    };
    if (level.attention_first) attend();
    for (const auto& block : level.blocks) {
      x = run(block, x, e, e.context, recomputes);
      skips.push_back(x);
    }
    if (!level.attention_first) attend();
    x = apply(level.post, x);
  }

  enter_level(downs.size());
  x = run(mid_block1, x, e, e.mid_context, recomputes);
  x = run_attention(mid_attn, x, recomputes);
  x = run(mid_block2, x, e, e.mid_context, recomputes);

  const auto join_skip = [&](const at::Tensor& map) {
    at::Tensor skip = skips.back();
    skips.pop_back();
    if (config.scale_skip_connection) skip = skip * M_SQRT1_2;
    return at::cat({map, skip}, 1);
  };
  std::vector<at::Tensor> maps;
  for (size_t i = 0; i < ups.size(); ++i) {
    UnetStage& level = ups[i];
    enter_level(ups.size() - 1 - i);
    x = run(level.first, join_skip(x), e, e.context, recomputes);
    if (level.attention_first) x = run_attention(level.attention, x, recomputes);
    for (const auto& block : level.blocks) x = run(block, join_skip(x), e, e.context, recomputes);
    if (!level.attention_first) x = run_attention(level.attention, x, recomputes);
    maps.push_back(x);
    x = apply(level.post, x);
  }
  enter_level(0);
  x = at::cat({combine(x, maps), input}, 1);
  return run(final_resnet_block, x, e, e.context, recomputes);
}

// The outputs of all levels at the full size, beside `x`.
at::Tensor UnetLayers::combine(const at::Tensor& x, const std::vector<at::Tensor>& maps) const {
  if (combiner.empty()) return x;
  std::vector<at::Tensor> joined = {x};
  for (size_t i = 0; i < maps.size(); ++i) {
    joined.push_back(combiner[i]->forward(resize_image_to(maps[i], x.size(3))));
  }
  return at::cat(joined, 1);
}

UnetImpl::UnetImpl(const UnetConfig& config)
    : layers_(std::make_unique<UnetLayers>(*this, config)) {
  if (config.checkpoint_during_training) recompute_levels(recomputable_levels());
}
UnetImpl::~UnetImpl() = default;

void UnetImpl::recompute_levels(int64_t levels) {
  D2_CHECK(levels >= 0 && levels <= recomputable_levels(), "a unet has no {} levels", levels);
  layers_->recomputed_levels = levels;
}

int64_t UnetImpl::recomputable_levels() const {
  return static_cast<int64_t>(layers_->downs.size()) + 1;
}

int64_t UnetImpl::recomputed_levels() const {
  return layers_->recomputed_levels;
}

at::Tensor UnetImpl::forward(const at::Tensor& x,
                             const at::Tensor& time,
                             const UnetConditions& conditions) {
  layers_->check_embeddings(x.size(0), conditions);
  return answer(layers_->init_conv.forward(layers_->join_inputs(x, conditions)),
                time.to(x.scalar_type()),
                conditions);
}

at::Tensor UnetImpl::answer(at::Tensor h,
                            const at::Tensor& time,
                            const UnetConditions& conditions) {
  UnetLayers& layers = *layers_;
  const UnetEmbedded embedded = layers.embed(time, conditions);
  // The trunk keeps the memory layout of its input. The first convolution stays planar: large kernels over
  // few channels are slower channels-last.
  h = layers.trunk(
      in_order_for_convolutions(h), embedded, is_training() && at::GradMode::is_enabled());
  if (layers.config.lowres_cond && layers.config.layout.lowres_at_end) {
    h = at::cat({h, in_order_for_convolutions(conditions.lowres_cond_img)}, 1);
  }
  return layers.to_out->forward(h);
}

std::pair<at::Tensor, at::Tensor> UnetImpl::forward_with_and_without(const at::Tensor& x,
                                                                     const at::Tensor& time,
                                                                     const UnetConditions& given) {
  const auto twice = [](const at::Tensor& rows) {
    return rows.defined() ? at::cat({rows, rows}) : rows;
  };
  UnetConditions both = {.image_embed = twice(given.image_embed),
                         .text_encodings = twice(given.text_encodings),
                         .lowres_cond_img = twice(given.lowres_cond_img),
                         .lowres_noise_level = twice(given.lowres_noise_level),
                         .self_cond = {},  // joined to the pictures
                         .image_keep_mask = {},
                         .text_keep_mask = {}};
  const at::Tensor none = prob_mask(x.size(0), 0.0, x.device(), std::nullopt);
  const auto kept_first = [&none](const at::Tensor& mask) {
    return at::cat({mask.defined() ? mask : none.logical_not(), none});
  };
  both.image_keep_mask = kept_first(given.image_keep_mask);
  both.text_keep_mask = kept_first(given.text_keep_mask);
  // The pictures are the same in both halves, and so is what stands before the conditions.
  layers_->check_embeddings(x.size(0), given);
  const at::Tensor h = layers_->init_conv.forward(layers_->join_inputs(x, given));
  const std::vector<at::Tensor> answers =
      answer(twice(h), twice(time.to(x.scalar_type())), both).chunk(2);
  return {answers[0], answers[1]};
}

at::Tensor UnetImpl::forward_with_cond_scale(const at::Tensor& x,
                                             const at::Tensor& time,
                                             const UnetConditions& conditions,
                                             double cond_scale) {
  if (cond_scale == 1.0) return forward(x, time, conditions);
  const auto [logits, null_logits] = forward_with_and_without(x, time, conditions);
  return null_logits + (logits - null_logits) * cond_scale;
}

const UnetConfig& UnetImpl::config() const {
  return layers_->config;
}

at::Tensor prob_mask(int64_t batch,
                     double keep_prob,
                     const at::Device& device,
                     std::optional<at::Generator> generator) {
  const at::TensorOptions options = at::TensorOptions().device(device);
  if (keep_prob >= 1.0) return at::ones({batch}, options.dtype(at::kBool));
  if (keep_prob <= 0.0) return at::zeros({batch}, options.dtype(at::kBool));
  return at::rand({batch}, generator, options.dtype(at::kFloat)) < keep_prob;
}

void UnetLayers::check_embeddings(int64_t batch, const UnetConditions& given) const {
  if (config.cond_on_image_embeds) {
    const at::Tensor& embed = given.image_embed;
    if (!embed.defined()) {
      throw DataError("this unet is conditioned on image embeddings, but none was given");
    }
    check_batch("image embeddings", embed, batch);
    if (embed.dim() != 2 || embed.size(1) != *config.image_embed_dim) {
      throw DataError(
          "image embeddings of shape {}, but image_embed_dim is {} in /decoder/unets: use embeddings "
          "of that width, or train a decoder with theirs",
          shape_text(embed.sizes()),
          *config.image_embed_dim);
    }
  }
  if (config.cond_on_text_encodings.value_or(false) && given.text_encodings.defined()) {
    const at::Tensor& text = given.text_encodings;
    check_batch("text encodings", text, batch);
    if (text.dim() != 3 || text.size(2) != *config.text_embed_dim) {
      throw DataError(
          "text encodings of shape {}, but text_embed_dim is {} in /decoder/unets: use encodings of "
          "that width, or train a decoder with theirs",
          shape_text(text.sizes()),
          *config.text_embed_dim);
    }
  }
}

at::Tensor UnetLayers::join_inputs(const at::Tensor& x, const UnetConditions& given) const {
  std::vector<at::Tensor> planes = {x};
  if (config.self_cond) {
    planes.push_back(given.self_cond.defined() ? given.self_cond : at::zeros_like(x));
  }
  if (config.lowres_cond) planes.push_back(given.lowres_cond_img);
  // The first convolution has large kernels over few channels, and is slower channels-last.
  return planes.size() == 1 ? x.contiguous() : at::cat(planes, 1).contiguous();
}

UnetEmbedded UnetLayers::embed(const at::Tensor& time, const UnetConditions& given) const {
  const at::Tensor hidden =
      at::gelu(to_time_hiddens->forward(sinusoidal_embedding(time, config.dim)));
  at::Tensor t = to_time_cond->forward(hidden);
  if (given.lowres_noise_level.defined()) {
    const at::Tensor level = given.lowres_noise_level.to(time.scalar_type());
    t = t + lowres_noise_out->forward(
                at::gelu(lowres_noise_in->forward(sinusoidal_embedding(level, config.dim))));
  }
  if (to_image_hiddens) {
    at::Tensor image = at::gelu(to_image_hiddens->forward(given.image_embed));
    if (given.image_keep_mask.defined()) {
      image = at::where(
          given.image_keep_mask.unsqueeze(-1), image, null_image_hiddens.to(image.scalar_type()));
    }
    t = t + image;
  }
  at::Tensor context =
      to_time_tokens->forward(hidden).view({time.size(0), config.num_time_tokens, -1});
  if (config.cond_on_image_embeds) context = at::cat({context, image_tokens(given)}, 1);
  at::Tensor mid_context = context;
  if (text_to_cond && given.text_encodings.defined()) {
    mid_context = at::cat({context, text_tokens(given)}, 1);
  }
  UnetEmbedded embedded = {.silu_time = at::silu(t),
                           .scale_shifts = {},
                           .context = norm_cond->forward(context),
                           .mid_context = norm_mid_cond->forward(mid_context)};
  project_time(embedded);
  return embedded;
}

std::vector<std::shared_ptr<ResnetBlockImpl>> UnetLayers::resnet_blocks() const {
  std::vector<std::shared_ptr<ResnetBlockImpl>> blocks = {
      mid_block1, mid_block2, final_resnet_block};
  if (init_resnet_block) blocks.push_back(init_resnet_block);
  for (const auto* const way : {&downs, &ups}) {
    for (const UnetStage& stage : *way) {
      blocks.push_back(stage.first);
      blocks.insert(blocks.end(), stage.blocks.begin(), stage.blocks.end());
    }
  }
  return blocks;
}

// The time projections of all blocks as one product. Not in a sampler, which would join the weights at each of its steps.
void UnetLayers::project_time(UnetEmbedded& embedded) const {
  if (!uses_cpu_algorithms(embedded.silu_time.device()) || c10::InferenceMode::is_enabled()) return;
  const std::vector<std::shared_ptr<ResnetBlockImpl>> blocks = resnet_blocks();
  std::vector<at::Tensor> weights, biases;
  std::vector<int64_t> widths;
  for (const auto& block : blocks) {
    const LinearLayerImpl& layer = *block->time_mlp;
    if (layer.adapter() || !layer.weight.requires_grad()) return;
    weights.push_back(in_half(layer.weight));
    biases.push_back(in_half(layer.bias));
    widths.push_back(layer.weight.size(0));
  }
  const std::vector<at::Tensor> projected =
      at::linear(embedded.silu_time, at::cat(weights), at::cat(biases)).split_with_sizes(widths, 1);
  for (size_t i = 0; i < blocks.size(); ++i) {
    embedded.scale_shifts.emplace(blocks[i].get(), projected[i]);
  }
}

// [B, num_image_tokens, cond_dim]
at::Tensor UnetLayers::image_tokens(const UnetConditions& given) const {
  const int64_t batch = given.image_embed.size(0);
  const at::Tensor tokens =
      image_to_tokens ? image_to_tokens->forward(given.image_embed)
                            .view({batch, config.num_image_tokens, cond_dim(config)})
                      : given.image_embed.unsqueeze(1).expand({-1, config.num_image_tokens, -1});
  if (!given.image_keep_mask.defined()) return tokens;
  return at::where(
      given.image_keep_mask.view({-1, 1, 1}), tokens, null_image_embed.to(tokens.scalar_type()));
}

// [B, max_text_len, cond_dim]; null tokens where the text is dropped or has ended.
at::Tensor UnetLayers::text_tokens(const UnetConditions& given) const {
  const int64_t length = config.max_text_len;
  const at::Tensor text =
      given.text_encodings.narrow(1, 0, std::min(length, given.text_encodings.size(1)));
  at::Tensor keep = text.ne(0).any(-1);  // [B, L]
  at::Tensor tokens = text_to_cond->forward(text);
  const int64_t missing = length - text.size(1);
  if (missing > 0) {
    tokens = at::constant_pad_nd(tokens, {0, 0, 0, missing});
    keep = at::constant_pad_nd(keep, {0, missing}, false);
  }
  if (given.text_keep_mask.defined()) keep = keep & given.text_keep_mask.unsqueeze(1);
  return at::where(keep.unsqueeze(-1), tokens, null_text_embed.to(tokens.scalar_type()));
}

}  // namespace dalle2
