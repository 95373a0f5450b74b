// SPDX-License-Identifier: MIT
#include "kernels/attention/linear_attention.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include "base/error.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/loops.h"

namespace dalle2 {
namespace {

template <class T>
void split_heads(const loops::LinearAttention<T>& loops,
                 const at::Tensor& qkv,
                 const LinearAttentionParts& parts) {
  constexpr float kLeastNorm = 1e-12F;  // as l2_normalize()
  const int64_t rows = qkv.size(1), heads = qkv.size(3), width = qkv.size(4);
  const loops::HeadRows shape{.rows = rows, .width = width, .step = 3 * heads * width};
  const T* const from = static_cast<const T*>(qkv.const_data_ptr());
  const auto to = [&](const at::Tensor& part, int64_t number) {
    return static_cast<T*>(part.mutable_data_ptr()) + number * rows * width;
  };
  at::parallel_for(0, qkv.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      const int64_t sample = number / heads, head = number % heads;
      const T* const q = from + sample * rows * shape.step + head * width;
      loops.softmax_rows(shape, q, to(parts.q, number));
      loops.softmax_columns(shape, q + heads * width, to(parts.k, number));
      loops.unit_rows(shape, kLeastNorm, q + 2 * heads * width, to(parts.v, number));
    }
  });
}

}  // namespace

bool has_linear_attention_parts(const at::Tensor& qkv) {
  return uses_cpu_algorithms(qkv.device()) && c10::InferenceMode::is_enabled() && qkv.dim() == 5 &&
         qkv.is_contiguous() && qkv.size(4) <= loops::kMostHeadWidth && qkv.numel() > 0 &&
         (qkv.scalar_type() == at::kFloat || qkv.scalar_type() == at::kBFloat16);
}

LinearAttentionParts linear_attention_parts(const at::Tensor& qkv) {
  D2_CHECK(has_linear_attention_parts(qkv) && qkv.size(2) == 3,
           "linear attention of {} {}",
           c10::toString(qkv.scalar_type()),
           c10::str(qkv.sizes()));
  const auto empty = [&] {
    return at::empty({qkv.size(0), qkv.size(3), qkv.size(1), qkv.size(4)}, qkv.options());
  };
  LinearAttentionParts parts{empty(), empty(), empty()};
  const loops::Table& table = loops::best();
  if (qkv.scalar_type() == at::kFloat) {
    split_heads(table.linear_attention_float, qkv, parts);
  } else {
    split_heads(table.linear_attention_half, qkv, parts);
  }
  return parts;
}

}  // namespace dalle2
