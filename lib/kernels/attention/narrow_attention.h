// SPDX-License-Identifier: MIT
// Attention whose heads are too narrow for a processor's matrix products: the exponentials decide its time.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// Whether narrow_attention() is used for such tensors: heads of 16 values, float32 or bfloat16 on the CPU, in inference mode.
bool has_narrow_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// softmax(q k^T scale) v, summed up in float32. @param q [B, 1, N, 16] contiguous; k, v [B, 1, M, 16], halves of one tensor's rows
/// @return [B, 1, N, 16]
at::Tensor narrow_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            double scale);

}  // namespace dalle2
