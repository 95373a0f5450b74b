// SPDX-License-Identifier: MIT
// Batches on their way from the host to a GPU, beside what it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "trainer/tensor_group.h"

namespace dalle2 {

/// Copies tensors of the host, from pinned memory and on a stream of their own; work that is queued
/// on the current stream afterwards waits for them, the host does not. On the CPU they stay.
void copy_to_device(const at::Device& device, const std::vector<at::Tensor*>& tensors);

/// A batch of any kind by copy_to_device().
template <TensorGroup Group>
Group copied_to(const at::Device& device, Group group) {
  std::vector<at::Tensor*> tensors;
  group.tensors([&](at::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(&tensor);
  });
  copy_to_device(device, tensors);
  return group;
}

}  // namespace dalle2
