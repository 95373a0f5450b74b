// SPDX-License-Identifier: MIT
#include "kernels/attention/narrow_attention.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/loops.h"

namespace dalle2 {
namespace {

template <class T>
void attend(const loops::NarrowAttention<T>& loops,
            const at::Tensor& q,
            const at::Tensor& k,
            const at::Tensor& v,
            float scale,
            at::Tensor& out) {
  constexpr int64_t kChunk = 1024;  // queries of a thread at once
  const int64_t queries = q.size(2), chunks = (queries + kChunk - 1) / kChunk;
  const auto from = [](const at::Tensor& tensor) {
    return static_cast<const T*>(tensor.const_data_ptr());
  };
  at::parallel_for(0, q.size(0) * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      const int64_t sample = number / chunks, first = number % chunks * kChunk;
      const int64_t at = (sample * queries + first) * loops::kNarrowHead;
      loops.attend({.queries = std::min(kChunk, queries - first),
                    .keys = k.size(2),
                    .kv_step = k.stride(2),
                    .scale = scale},
                   from(q) + at,
                   from(k) + sample * k.stride(0),
                   from(v) + sample * v.stride(0),
                   static_cast<T*>(out.mutable_data_ptr()) + at);
    }
  });
}

}  // namespace

bool has_narrow_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto fits = [&](const at::Tensor& tensor) {
    return tensor.dim() == 4 && tensor.size(1) == 1 && tensor.size(3) == loops::kNarrowHead &&
           tensor.stride(3) == 1 && tensor.scalar_type() == q.scalar_type();
  };
  return loops::best().fast_shapes.narrow_attention && uses_cpu_algorithms(q.device()) &&
         c10::InferenceMode::is_enabled() &&
         (q.scalar_type() == at::kFloat || q.scalar_type() == at::kBFloat16) && fits(q) &&
         q.is_contiguous() && fits(k) && fits(v) && k.size(2) == v.size(2) && k.size(2) > 0 &&
         k.stride(2) == v.stride(2) && q.size(2) > 0;
}

at::Tensor narrow_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            double scale) {
  D2_CHECK(q.size(0) == k.size(0) && q.size(0) == v.size(0),
           "attention of batches of {}, {} and {}",
           q.size(0),
           k.size(0),
           v.size(0));
  at::Tensor out = at::empty_like(q);
  const loops::Table& table = loops::best();
  if (q.scalar_type() == at::kFloat) {
    attend(table.narrow_attention_float, q, k, v, static_cast<float>(scale), out);
  } else {
    attend(table.narrow_attention_half, q, k, v, static_cast<float>(scale), out);
  }
  return out;
}

}  // namespace dalle2
