// SPDX-License-Identifier: MIT
#include "model/folded_attention.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <cmath>

#include "base/error.h"
#include "model/layers.h"

namespace dalle2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Views are made by as_strided(), each in one call: transpose() takes two, select() and t() three.
struct Inputs {
  at::Tensor map, context, gain, null_kv, to_q, to_kv, to_out, out_gain;
  int64_t batch = map.size(0), dim = map.size(1), height = map.size(2), width = map.size(3);
  int64_t pixels = height * width, cond_dim = context.size(2);
  int64_t keys = context.size(1) + 1;  // of a sample: the null key and those of the context
  int64_t head = null_kv.size(1), inner = to_q.size(0), heads = inner / head;

  explicit Inputs(at::TensorList t)
      : map(t[0]),
        context(t[1]),
        gain(t[2]),
        null_kv(t[3]),
        to_q(t[4]),
        to_kv(t[5]),
        to_out(t[6]),
        out_gain(t[7]) {}

  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head)); }
  at::Tensor as_tokens(const at::Tensor& of_map) const {  // [B, N, dim]
    return of_map.as_strided({batch, pixels, dim}, {pixels * dim, dim, 1});
  }
  at::Tensor as_map(const at::Tensor& tokens) const {  // [B, dim, H, W]
    return tokens.as_strided({batch, dim, height, width}, {pixels * dim, 1, width * dim, dim});
  }
  /// Keys (0) or values (1) of [B, keys, 2 inner]. @return [heads, B keys, head]
  at::Tensor by_head(const at::Tensor& rows, int64_t which) const {
    return rows.as_strided({heads, batch * keys, head}, {head, 2 * inner, 1}, which * inner);
  }
  at::Tensor q_by_head() const { return to_q.view({heads, head, dim}); }
  at::Tensor out_by_head() const {  // [heads, head, dim]
    return to_out.as_strided({heads, head, dim}, {head, 1, inner});
  }
  /// [first, second, keys, dim] -> [second, first keys, dim]
  at::Tensor swapped(const at::Tensor& t, int64_t first, int64_t second) const {
    if (batch == 1) return t.view({second, -1, dim});
    const int64_t block = keys * dim;
    const at::Tensor view =
        t.as_strided({second, first, keys, dim}, {block, second * block, dim, 1});
    return at::empty(view.sizes(), view.options()).copy_(view).view({second, -1, dim});
  }
  at::Tensor per_sample(const at::Tensor& t) const { return swapped(t, heads, batch); }
  at::Tensor per_head(const at::Tensor& t) const { return swapped(t, batch, heads); }
};

/// The last two dimensions change places.
at::Tensor turned(const at::Tensor& t) {
  const int64_t rows = t.size(-2), columns = t.size(-1);
  if (t.dim() == 2) return t.as_strided({columns, rows}, {t.stride(1), t.stride(0)});
  return t.as_strided({t.size(0), columns, rows}, {t.stride(0), t.stride(2), t.stride(1)});
}

struct FoldedAttention : torch::autograd::Function<FoldedAttention> {
  static at::Tensor forward(AutogradContext* graph, at::TensorList inputs) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
    const at::AutoDispatchBelowADInplaceOrView below;
    const Inputs in(inputs);
    const at::ScalarType dtype = in.map.scalar_type();
    const auto [normed, mean, rstd] =
        at::native_layer_norm(in.as_tokens(in.map), {in.dim}, in.gain, {}, norm_eps(dtype));
    const at::Tensor null = in.null_kv.scalar_type() == dtype ? in.null_kv : in.null_kv.to(dtype);
    const at::Tensor projected = at::mm(in.context.reshape({-1, in.cond_dim}), turned(in.to_kv));
    const at::Tensor rows =  // [B, keys, 2, heads, head]
        at::cat({null.as_strided({in.batch, 1, 2, in.heads, in.head}, {0, 0, in.head, 0, 1}),
                 projected.view({in.batch, in.keys - 1, 2, in.heads, in.head})},
                1);
    // Keys through to_q and values through to_out: [B, heads keys, dim].
    const at::Tensor k =
        in.per_sample(at::bmm(in.by_head(rows, 0), in.q_by_head())).mul_(in.scale());
    const at::Tensor v = in.per_sample(at::bmm(in.by_head(rows, 1), in.out_by_head()));
    // Pixels are the fastest dimension of the logits, so the softmax runs over whole vectors.
    const at::Tensor logits = at::bmm(k, turned(normed)).view({in.batch, in.heads, in.keys, -1});
    const at::Tensor weights = at::_softmax(logits, 2, /*half_to_float=*/false);
    const at::Tensor out = at::bmm(turned(weights.view({in.batch, -1, in.pixels})), v);
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
    const Inputs in(saved);
    const at::Tensor &normed = saved[8], &mean = saved[9], &rstd = saved[10], &rows = saved[11],
                     &k = saved[12], &v = saved[13], &weights = saved[14], &out = saved[15],
                     &out_mean = saved[16], &out_rstd = saved[17];
    const at::Tensor dy = in.as_tokens(grads[0].contiguous(at::MemoryFormat::ChannelsLast));
    const auto [dout, dout_gain, no_bias] = at::native_layer_norm_backward(
        dy, out, {in.dim}, out_mean, out_rstd, in.out_gain, {}, {true, true, false});
    const std::vector<int64_t> all_heads = {in.batch, -1, in.pixels};
    const at::Tensor dweights = at::bmm(v, turned(dout)).view(weights.sizes());
    const at::Tensor dlogits =
        at::_softmax_backward_data(dweights, weights, 2, weights.scalar_type()).view(all_heads);
    const at::Tensor dnormed = at::bmm(turned(dlogits), k);
    const auto [dx, dgain, no_bias_either] = at::native_layer_norm_backward(
        dnormed, in.as_tokens(in.map), {in.dim}, mean, rstd, in.gain, {}, {true, true, false});
    dx.add_(dy);

    // [heads, B keys, dim]
    const at::Tensor dk = in.per_head(at::bmm(dlogits, normed)).mul_(in.scale());
    const at::Tensor dv = in.per_head(at::bmm(weights.view(all_heads), dout));
    const at::Tensor dto_q = at::bmm(turned(in.by_head(rows, 0)), dk);
    const at::Tensor dto_out = at::bmm(turned(in.by_head(rows, 1)), dv);
    const at::Tensor drows = at::empty(rows.sizes(), rows.options());
    in.by_head(drows, 0).copy_(at::bmm(dk, turned(in.q_by_head())));
    in.by_head(drows, 1).copy_(at::bmm(dv, turned(in.out_by_head())));
    const int64_t row = 2 * in.inner;
    const at::Tensor dnull =
        drows.as_strided({in.batch, 2, in.heads, in.head}, {in.keys * row, in.inner, in.head, 1})
            .sum(at::IntArrayRef({0, 2}), /*keepdim=*/false, in.null_kv.scalar_type());
    const at::Tensor dprojected =
        drows.as_strided({in.batch, in.keys - 1, row}, {in.keys * row, row, 1}, row)
            .reshape({-1, row});
    return {in.as_map(dx),
            at::mm(dprojected, in.to_kv).view(in.context.sizes()),
            dgain,
            dnull,
            dto_q.view({in.inner, in.dim}),
            at::mm(turned(dprojected), in.context.reshape({-1, in.cond_dim})),
            turned(dto_out.view({in.inner, in.dim})),
            dout_gain};
  }
};

}  // namespace

at::Tensor add_folded_attention(const at::Tensor& map,
                                const at::Tensor& context,
                                const FoldedAttentionWeights& weights) {
  const auto& [gain, null_kv, to_q, to_kv, to_out, out_gain] = weights;
  const variable_list inputs = {map, context, gain, null_kv, to_q, to_kv, to_out, out_gain};
  return FoldedAttention::apply(at::TensorList(inputs));
}

}  // namespace dalle2
