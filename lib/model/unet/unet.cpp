// SPDX-License-Identifier: MIT
#include "model/unet/unet.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/error.h"
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
                           const at::Tensor& context) const {
  if (!recomputes) return block->forward(x, e.silu_time, context);
  return recompute_in_backward(
      [block](const std::vector<at::Tensor>& in) { return block->forward(in[0], in[1], in[2]); },
      {x, e.silu_time, context},
      block->parameters());
}

at::Tensor UnetLayers::run_attention(AnyModule& attention, const at::Tensor& x) const {
  if (attention.is_empty() || !recomputes) return apply(attention, x);
  return recompute_in_backward(
      [copy = attention](const std::vector<at::Tensor>& in) mutable { return apply(copy, in[0]); },
      {x},
      attention.ptr()->parameters());
}

at::Tensor UnetLayers::trunk(at::Tensor x, const UnetEmbedded& e) {
  const auto enter_level = [&](size_t level) {
    recomputes = keeps_gradients && static_cast<int64_t>(level) < recomputed_levels;
  };
  const at::Tensor input = x;
  enter_level(0);
  if (init_resnet_block) x = run(init_resnet_block, x, e, e.context);

  std::vector<at::Tensor> skips;  // num_blocks + 1 a level
  for (size_t i = 0; i < downs.size(); ++i) {
    UnetStage& level = downs[i];
    enter_level(i);
    x = apply(level.pre, x);
    x = run(level.first, x, e, e.context);
    for (const auto& block : level.blocks) {
      x = run(block, x, e, e.context);
      skips.push_back(x);
    }
    x = run_attention(level.attention, x);
    skips.push_back(x);
    x = apply(level.post, x);
  }

  AnyModule middle(mid_attn);
  enter_level(downs.size());
  x = run(mid_block1, x, e, e.mid_context);
  x = run_attention(middle, x);
  x = run(mid_block2, x, e, e.mid_context);

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
    x = run(level.first, join_skip(x), e, e.context);
    for (const auto& block : level.blocks) x = run(block, join_skip(x), e, e.context);
    x = run_attention(level.attention, x);
    maps.push_back(x);
    x = apply(level.post, x);
  }
  enter_level(0);
  x = at::cat({combine(x, maps), input}, 1);
  return run(final_resnet_block, x, e, e.context);
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
  layers_->check_inputs(x, time, conditions);
  return answer(layers_->init_conv.forward(layers_->join_inputs(x, conditions)),
                time.to(x.scalar_type()),
                conditions);
}

at::Tensor UnetImpl::answer(at::Tensor h,
                            const at::Tensor& time,
                            const UnetConditions& conditions) {
  UnetLayers& layers = *layers_;
  layers.keeps_gradients = is_training() && at::GradMode::is_enabled();
  const UnetEmbedded embedded = layers.embed(time, conditions);
  // The trunk keeps the memory layout of its input. The first convolution stays planar: large kernels over
  // few channels are slower channels-last.
  h = layers.trunk(in_order_for_convolutions(h), embedded);
  if (layers.config.lowres_cond) {
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
  layers_->check_inputs(x, time, given);
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

}  // namespace dalle2
