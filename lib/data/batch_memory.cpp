// SPDX-License-Identifier: MIT
#include "data/batch_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

namespace dalle2 {

at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu) {
  // LibTorch asks the thread's current GPU about its streams, and would open a context on the first one.
  const c10::OptionalDeviceGuard on_gpu(gpu);
  return at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(gpu.has_value()));
}

}  // namespace dalle2
