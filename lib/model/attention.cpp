// SPDX-License-Identifier: MIT
#include "model/attention.h"

#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <cmath>

#include "base/error.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/half_weights.h"

namespace dalle2 {
namespace {

constexpr int64_t kCrossHeads = 8;
constexpr int64_t kCrossDimHead = 64;
constexpr int64_t kCrossInner = kCrossHeads * kCrossDimHead;

/// Scaled dot product attention. The CPU's backward pass with narrow heads takes twice the time in bfloat16
/// that it takes in float32, in which the sums are anyway. Its forward pass alone is faster in bfloat16.
at::Tensor attention_in_fast_type(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  double scale) {
  constexpr int64_t kNarrow = 16;
  const bool widens = q.is_cpu() && q.scalar_type() == at::kBFloat16 && q.size(-1) <= kNarrow &&
                      !c10::InferenceMode::is_enabled();
  if (!widens) {
    return at::scaled_dot_product_attention(
        q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false, scale);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::scaled_dot_product_attention(q.to(at::kFloat),
                                          k.to(at::kFloat),
                                          v.to(at::kFloat),
                                          /*attn_mask=*/{},
                                          /*dropout_p=*/0.0,
                                          /*is_causal=*/false,
                                          scale)
      .to(at::kBFloat16);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Cross attention with its projections folded onto the few condition tokens, as one node of the graph with a backward
/// pass of its own: half of the operations that autograd makes of the same formula. It adds to each pixel of a map
/// [B, dim, H, W] what it sees in the context [B, M, cond_dim]; CrossAttentionImpl::forward() is the plain form. The
/// inputs are of the map's type, except that gains and the null key may be wider.
///
/// Views are made past the dispatcher: one of ATen's is two or three calls.
struct FoldedInputs {
  at::Tensor map, context;
  at::Tensor gain;      // [dim], of the norm of the pixels
  at::Tensor null_kv;   // [2, head]
  at::Tensor to_q;      // [inner, dim]
  at::Tensor to_kv;     // [2 inner, cond_dim]
  at::Tensor to_out;    // [dim, inner]
  at::Tensor out_gain;  // [dim]
  int64_t batch = map.size(0), dim = map.size(1), height = map.size(2), width = map.size(3);
  int64_t pixels = height * width, cond_dim = context.size(2);
  int64_t keys = context.size(1) + 1;  // of a sample: the null key and those of the context
  int64_t head = null_kv.size(1), inner = to_q.size(0), heads = inner / head;

  explicit FoldedInputs(at::TensorList t)
      : map(t[0]),
        context(t[1]),
        gain(t[2]),
        null_kv(t[3]),
        to_q(t[4]),
        to_kv(t[5]),
        to_out(t[6]),
        out_gain(t[7]) {}

  at::Tensor scale() const {  // a number would become a tensor in five calls
    return at::detail::scalar_tensor_static(
        1.0 / std::sqrt(static_cast<double>(head)), at::kFloat, at::kCPU);
  }
  at::Tensor as_tokens(const at::Tensor& of_map) const {  // [B, N, dim]
    return at::cpu::as_strided(of_map, {batch, pixels, dim}, {pixels * dim, dim, 1});
  }
  at::Tensor as_map(const at::Tensor& tokens) const {  // [B, dim, H, W]
    return at::cpu::as_strided(
        tokens, {batch, dim, height, width}, {pixels * dim, 1, width * dim, dim});
  }
  /// Keys (0) or values (1) of [B, keys, 2 inner]. @return [heads, B keys, head]
  at::Tensor by_head(const at::Tensor& rows, int64_t which) const {
    return at::cpu::as_strided(
        rows, {heads, batch * keys, head}, {head, 2 * inner, 1}, which * inner);
  }
  at::Tensor q_by_head() const { return at::cpu::view(to_q, {heads, head, dim}); }
  at::Tensor out_by_head() const {  // [heads, head, dim]
    return at::cpu::as_strided(to_out, {heads, head, dim}, {head, 1, inner});
  }
  /// [first, second, keys, dim] -> [second, first keys, dim]
  at::Tensor swapped(const at::Tensor& t, int64_t first, int64_t second) const {
    if (batch == 1) return at::cpu::view(t, {second, -1, dim});
    const int64_t block = keys * dim;
    const at::Tensor view =
        at::cpu::as_strided(t, {second, first, keys, dim}, {block, second * block, dim, 1});
    return at::cpu::view(at::cpu::empty(view.sizes(), view.options()).copy_(view),
                         {second, -1, dim});
  }
  at::Tensor per_sample(const at::Tensor& t) const { return swapped(t, heads, batch); }
  at::Tensor per_head(const at::Tensor& t) const { return swapped(t, batch, heads); }
};

struct FoldedAttention : torch::autograd::Function<FoldedAttention> {
  static at::Tensor forward(AutogradContext* graph, at::TensorList inputs) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    const at::AutoDispatchBelowADInplaceOrView below;
    const FoldedInputs in(inputs);
    const at::ScalarType dtype = in.map.scalar_type();
    const auto [normed, mean, rstd] =
        at::native_layer_norm(in.as_tokens(in.map), {in.dim}, in.gain, {}, norm_eps(dtype));
    const at::Tensor null = in.null_kv.scalar_type() == dtype ? in.null_kv : in.null_kv.to(dtype);
    const at::Tensor projected = at::mm(in.context.reshape({-1, in.cond_dim}), turned(in.to_kv));
    const at::Tensor rows =  // [B, keys, 2, heads, head]
        at::cat(
            {at::cpu::as_strided(null, {in.batch, 1, 2, in.heads, in.head}, {0, 0, in.head, 0, 1}),
             at::cpu::view(projected, {in.batch, in.keys - 1, 2, in.heads, in.head})},
            1);
    // Keys through to_q and values through to_out: [B, heads keys, dim].
    const at::Tensor k =
        in.per_sample(at::bmm(in.by_head(rows, 0), in.q_by_head())).mul_(in.scale());
    const at::Tensor v = in.per_sample(at::bmm(in.by_head(rows, 1), in.out_by_head()));
    // Pixels are the fastest dimension of the logits, so the softmax runs over whole vectors.
    const at::Tensor logits =
        at::cpu::view(at::bmm(k, turned(normed)), {in.batch, in.heads, in.keys, -1});
    const at::Tensor weights = at::_softmax(logits, 2, /*half_to_float=*/false);
    const at::Tensor out = at::bmm(turned(at::cpu::view(weights, {in.batch, -1, in.pixels})), v);
    const auto [y, out_mean, out_rstd] =
        at::native_layer_norm(out, {in.dim}, in.out_gain, {}, norm_eps(dtype));
    variable_list saved = inputs.vec();
    saved.insert(saved.end(), {normed, mean, rstd, rows, k, v, weights, out, out_mean, out_rstd});
    graph->save_for_backward(std::move(saved));
    return in.map + in.as_map(y);
  }

  static variable_list backward(AutogradContext* graph, const variable_list& grads) {
    D2_CHECK(!at::GradMode::is_enabled(), "a folded attention has no second derivatives");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    const variable_list saved = graph->get_saved_variables();
    const FoldedInputs in(saved);
    const at::Tensor &normed = saved[8], &mean = saved[9], &rstd = saved[10], &rows = saved[11],
                     &k = saved[12], &v = saved[13], &weights = saved[14], &out = saved[15],
                     &out_mean = saved[16], &out_rstd = saved[17];
    const at::Tensor dy = in.as_tokens(grads[0].contiguous(at::MemoryFormat::ChannelsLast));
    const auto [dout, dout_gain, no_bias] = at::native_layer_norm_backward(
        dy, out, {in.dim}, out_mean, out_rstd, in.out_gain, {}, {true, true, false});
    const std::vector<int64_t> all_heads = {in.batch, -1, in.pixels};
    const at::Tensor dweights = at::cpu::view(at::bmm(v, turned(dout)), weights.sizes());
    const at::Tensor dlogits = at::cpu::view(
        at::_softmax_backward_data(dweights, weights, 2, weights.scalar_type()), all_heads);
    const at::Tensor dnormed = at::bmm(turned(dlogits), k);
    const auto [dx, dgain, no_bias_either] = at::native_layer_norm_backward(
        dnormed, in.as_tokens(in.map), {in.dim}, mean, rstd, in.gain, {}, {true, true, false});
    dx.add_(dy);

    // [heads, B keys, dim]
    const at::Tensor dk = in.per_head(at::bmm(dlogits, normed)).mul_(in.scale());
    const at::Tensor dv = in.per_head(at::bmm(at::cpu::view(weights, all_heads), dout));
    const at::Tensor dto_q = at::bmm(turned(in.by_head(rows, 0)), dk);
    const at::Tensor dto_out = at::bmm(turned(in.by_head(rows, 1)), dv);
    const at::Tensor drows = at::cpu::empty(rows.sizes(), rows.options());
    in.by_head(drows, 0).copy_(at::bmm(dk, turned(in.q_by_head())));
    in.by_head(drows, 1).copy_(at::bmm(dv, turned(in.out_by_head())));
    const int64_t row = 2 * in.inner;
    const at::Tensor dnull =
        at::cpu::as_strided(
            drows, {in.batch, 2, in.heads, in.head}, {in.keys * row, in.inner, in.head, 1})
            .sum(at::IntArrayRef({0, 2}), /*keepdim=*/false, in.null_kv.scalar_type());
    const at::Tensor dprojected =
        at::cpu::as_strided(drows, {in.batch, in.keys - 1, row}, {in.keys * row, row, 1}, row)
            .reshape({-1, row});
    return {in.as_map(dx),
            at::cpu::view(at::mm(dprojected, in.to_kv), in.context.sizes()),
            dgain,
            dnull,
            at::cpu::view(dto_q, {in.inner, in.dim}),
            at::mm(turned(dprojected), in.context.reshape({-1, in.cond_dim})),
            turned(at::cpu::view(dto_out, {in.inner, in.dim})),
            dout_gain};
  }
};

}  // namespace

at::Tensor map_to_tokens(const at::Tensor& map) {
  return map.flatten(2).transpose(1, 2);
}

at::Tensor tokens_to_map(const at::Tensor& tokens, int64_t height, int64_t width) {
  return tokens.transpose(1, 2).unflatten(2, {height, width});
}

AttentionOutImpl::AttentionOutImpl(int64_t inner, int64_t dim, const NormLayout& norm_layout) {
  linear = register_module("0", make_linear(inner, dim, /*bias=*/false));
  norm = register_module("1", make_norm(dim, norm_layout));
}

AttentionImpl::AttentionImpl(
    int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout)
    : dim_head_(dim_head), cosine_sim_(cosine_sim) {
  const auto width = static_cast<double>(dim_head);
  scale_ = cosine_sim            ? kCosineSimScale
           : layout.twice_scaled ? 1.0 / width
                                 : 1.0 / std::sqrt(width);
  null_kv_ = register_parameter("null_kv", torch::randn({2, dim_head}));
  norm_ = register_module("norm", make_norm(dim, layout.norm));
  to_q_ = register_module("to_q", make_linear(dim, heads * dim_head, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(dim, 2 * dim_head, /*bias=*/false));
  to_out_ = register_module("to_out",
                            std::make_shared<AttentionOutImpl>(heads * dim_head, dim, layout.norm));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const int64_t tokens = x.size(1);
  const at::Tensor normed = norm_->forward(x);
  // With one key/value head the query heads are just more queries: [B, 1, N heads, d], no copy.
  at::Tensor q = to_q_->forward(normed).view({batch, 1, -1, dim_head_});
  const at::Tensor projected = to_kv_->forward(normed);  // [B, N, 2 d]
  const at::Tensor null_kv = null_kv_.to(projected.scalar_type()).view({1, 1, 2 * dim_head_});
  const at::Tensor kv =
      at::cat({null_kv.expand({batch, 1, -1}), projected}, 1).unsqueeze(1);  // [B, 1, N + 1, 2 d]
  const std::vector<at::Tensor> both = kv.chunk(2, -1);
  at::Tensor k = both[0];
  const at::Tensor& v = both[1];
  if (cosine_sim_) {
    q = l2_normalize(q);
    k = l2_normalize(k);
  }
  const at::Tensor out = attention_in_fast_type(q, k, v, scale_);
  return to_out_->forward(out.reshape({batch, tokens, -1}));
}

CrossAttentionImpl::CrossAttentionImpl(int64_t dim,
                                       int64_t context_dim,
                                       bool cosine_sim,
                                       const UnetLayout& layout)
    : cosine_sim_(cosine_sim), norm_by_max_(layout.norm.by_max) {
  null_kv_ = register_parameter("null_kv", torch::randn({2, kCrossDimHead}));
  norm_ = register_module("norm", make_norm(dim, layout.norm));
  to_q_ = register_module("to_q", make_linear(dim, kCrossInner, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(context_dim, 2 * kCrossInner, /*bias=*/false));
  to_out_ =
      register_module("to_out", std::make_shared<AttentionOutImpl>(kCrossInner, dim, layout.norm));
}

at::Tensor CrossAttentionImpl::forward(const at::Tensor& x, const at::Tensor& context) {
  const at::Tensor normed = norm_->forward(x);
  const at::Tensor kv = keys_values(context);
  if (!folds(x.size(1), kv.size(1), x.size(2))) return to_out_->forward(attend(normed, kv));
  return to_out_->norm->forward(attend_folded(normed, kv));
}

bool CrossAttentionImpl::folds(int64_t pixels, int64_t keys, int64_t width) const {
  // Multiplications a sample, up to a common factor: with n pixels, m condition tokens and width d,
  // the plain way takes d * 512 * n twice and 512 * n * m twice; folded it is the projections of m
  // tokens and 8 * m logits a pixel. A dozen tokens make folding ten times cheaper.
  const double n = static_cast<double>(pixels);
  const double m = static_cast<double>(keys);
  const double d = static_cast<double>(width);
  const double plain = n * (d + m) * static_cast<double>(kCrossInner);
  const double folded =
      m * d * static_cast<double>(kCrossInner) + n * m * d * static_cast<double>(kCrossHeads);
  const bool drops = to_q_->drops() || to_out_->linear->drops();
  return !cosine_sim_ && !drops && plain >= folded;
}

// A sampler keeps views of weights at rest, so that the plain form is as fast there. The answer is the same with and without gradients:
// activations that are computed again have the same bits.
bool CrossAttentionImpl::is_one_operation(const at::Tensor& map, const at::Tensor& context) const {
  if (!uses_cpu_algorithms(map.device()) || c10::InferenceMode::is_enabled() ||
      !map.is_contiguous(at::MemoryFormat::ChannelsLast) || norm_by_max_ ||
      !folds(map.size(2) * map.size(3), context.size(1) + 1, map.size(1))) {
    return false;
  }
  const at::ScalarType dtype = map.scalar_type();
  if (context.scalar_type() != dtype || (at::autocast::is_autocast_enabled(at::kCPU) &&
                                         at::autocast::get_autocast_dtype(at::kCPU) != dtype)) {
    return false;
  }
  for (const auto& layer : {to_q_, to_kv_, to_out_->linear}) {
    const at::Tensor weight = in_half(layer->weight);
    if (layer->adapter() || !layer->weight.requires_grad() || !weight.is_contiguous() ||
        weight.scalar_type() != dtype) {
      return false;
    }
  }
  return true;
}

at::Tensor CrossAttentionImpl::add_to(const at::Tensor& map, const at::Tensor& context) {
  if (is_one_operation(map, context)) {
    const variable_list inputs = {map,
                                  context,
                                  norm_->g,
                                  null_kv_,
                                  in_half(to_q_->weight),
                                  in_half(to_kv_->weight),
                                  in_half(to_out_->linear->weight),
                                  to_out_->norm->g};
    return FoldedAttention::apply(at::TensorList(inputs));
  }
  return map + tokens_to_map(forward(map_to_tokens(map), context), map.size(2), map.size(3));
}

// Null key and value, then those of the context: [B, M + 1, 2 (k, v), heads, 64].
at::Tensor CrossAttentionImpl::keys_values(const at::Tensor& context) {
  const at::Tensor projected =
      to_kv_->forward(context).unflatten(-1, {2, kCrossHeads, kCrossDimHead});
  const at::Tensor null_kv = null_kv_.to(projected.scalar_type()).view({1, 1, 2, 1, -1});
  return at::cat({null_kv.expand({context.size(0), 1, 2, kCrossHeads, kCrossDimHead}), projected},
                 1);
}

// [B, N, 512]
at::Tensor CrossAttentionImpl::attend(const at::Tensor& x, const at::Tensor& kv) {
  at::Tensor q = to_q_->forward(x).unflatten(-1, {kCrossHeads, kCrossDimHead}).transpose(1, 2);
  const std::vector<at::Tensor> both = kv.unbind(2);
  at::Tensor k = both[0].transpose(1, 2);  // [B, heads, M + 1, 64]
  const at::Tensor v = both[1].transpose(1, 2);
  if (cosine_sim_) {
    q = l2_normalize(q);
    k = l2_normalize(k);
  }
  const double scale = cosine_sim_ ? kCosineSimScale : 1.0 / std::sqrt(double{kCrossDimHead});
  return at::scaled_dot_product_attention(
             q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false, scale)
      .transpose(1, 2)
      .flatten(2);
}

// The same with the 512-wide projections moved from the pixels to the few condition tokens: (x
// Wq^T) k^T = x (k Wq)^T and (P v) Wo^T = P (v Wo^T). Includes to_out's linear: [B, N, dim].
at::Tensor CrossAttentionImpl::attend_folded(const at::Tensor& x, const at::Tensor& kv) {
  const int64_t batch = x.size(0);
  const int64_t keys = kv.size(1);
  const int64_t dim = x.size(2);
  // [heads, B (M + 1), 64]
  const auto per_head = [](const at::Tensor& one) {
    return one.permute({2, 0, 1, 3}).reshape({kCrossHeads, -1, kCrossDimHead});
  };
  const std::vector<at::Tensor> both = kv.unbind(2);
  // [heads, B (M + 1), dim] -> [B, heads (M + 1), dim]
  const auto per_sample = [&](const at::Tensor& t) {
    return t.view({kCrossHeads, batch, keys, dim}).transpose(0, 1).reshape({batch, -1, dim});
  };
  const double scale = 1.0 / std::sqrt(double{kCrossDimHead});
  const auto by_heads_in = [&](const at::Tensor& weight) {  // [512, dim] -> [heads, 64, dim]
    return weight.view({kCrossHeads, kCrossDimHead, dim});
  };
  const auto by_heads_out = [&](const at::Tensor& weight) {  // [dim, 512] -> [heads, 64, dim]
    return weight.view({dim, kCrossHeads, kCrossDimHead}).permute({1, 2, 0});
  };
  const at::Tensor k = per_sample(to_q_->multiply(per_head(both[0]) * scale, by_heads_in));
  const at::Tensor v = per_sample(to_out_->linear->multiply(per_head(both[1]), by_heads_out));
  // Pixels are the fastest dimension of the logits, so the softmax runs over whole vectors.
  const at::Tensor logits = at::bmm(k, x.transpose(1, 2)).view({batch, kCrossHeads, keys, -1});
  const at::Tensor weights = logits.softmax(2).view({batch, kCrossHeads * keys, -1});
  return at::bmm(weights.transpose(1, 2), v);
}

MapAttentionImpl::MapAttentionImpl(
    int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout) {
  attention_ =
      add_group(*this, "fn")
          ->register_module(
              "fn", std::make_shared<AttentionImpl>(dim, heads, dim_head, cosine_sim, layout));
}

at::Tensor MapAttentionImpl::forward(const at::Tensor& x) {
  const at::Tensor out = attention_->forward(map_to_tokens(x));
  return x + tokens_to_map(out, x.size(2), x.size(3));
}

LinearAttentionImpl::LinearAttentionImpl(int64_t dim,
                                         int64_t heads,
                                         int64_t dim_head,
                                         const UnetLayout& layout)
    : heads_(heads),
      dim_head_(dim_head),
      unit_values_(layout.unit_values),
      mean_values_(layout.mean_values) {
  const int64_t inner = heads * dim_head;
  const std::vector<int64_t> gain_shape = {1, dim, 1, 1};
  const auto fn = add_group(*this, "fn");
  const NormLayout norm = {.by_max = layout.norm.by_max};  // the gain of a map's norm is always `g`
  norm_ = fn->register_module("norm", std::make_shared<GainNormImpl>(gain_shape, norm));
  to_qkv_ = fn->register_module("to_qkv", std::make_shared<TokenConvImpl>(dim, 3 * inner));
  const auto to_out = add_group(*fn, "to_out");
  to_out_ = to_out->register_module("0", std::make_shared<TokenConvImpl>(inner, dim));
  out_norm_ = to_out->register_module("1", std::make_shared<GainNormImpl>(gain_shape, norm));
}

at::Tensor LinearAttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const double tokens = mean_values_ ? static_cast<double>(x.size(2) * x.size(3)) : 1.0;
  const at::Tensor normed = norm_->forward(map_to_tokens(x));
  const std::vector<at::Tensor> qkv =
      to_qkv_->forward(normed).view({batch, -1, 3, heads_, dim_head_}).unbind(2);
  // [B, heads, N, d]: one copy here, in place of one for each of the operations on it.
  const auto by_head = [&](size_t i) { return qkv[i].transpose(1, 2).contiguous(); };
  const at::Tensor q = by_head(0).softmax(-1);
  const at::Tensor k = by_head(1).softmax(2);
  const at::Tensor v = unit_values_ ? l2_normalize(by_head(2)) : by_head(2);
  // The reference scales q by d^-1/2 and, since 1.4.0, both k and v by N^-1/2.
  const double scale = 1.0 / (tokens * std::sqrt(static_cast<double>(dim_head_)));
  const at::Tensor context = at::matmul(k.transpose(-1, -2), v) * scale;  // [B, heads, d, d]
  const at::Tensor out = at::matmul(q, context).transpose(1, 2).flatten(2);
  const at::Tensor projected = to_out_->forward(at::gelu(out));
  return x + tokens_to_map(out_norm_->forward(projected), x.size(2), x.size(3));
}

}  // namespace dalle2
