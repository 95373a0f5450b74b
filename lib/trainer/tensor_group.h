// SPDX-License-Identifier: MIT
// Tensors that travel together (the inputs of a step, its draws, the options of a sampling): cut
// into chunks and moved to a device, whatever the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "diffusion/decoder/decoder.h"

namespace dalle2 {

/// A struct that names every tensor with samples in its first dimension, in `tensors(f)`. One that
/// is not given is undefined. Where something is cut along with them that is not a tensor, it has
/// `cut_rest(begin, length)`.
template <class T>
concept TensorGroup = requires(T& group, void (*f)(at::Tensor&)) {
  group.tensors(f);
};

/// Samples [begin, begin + length) of a batch.
struct ChunkRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// Chunks of `max_batch_size` samples, the last one whatever is left; without it the whole batch is
/// one.
std::vector<ChunkRange> chunk_ranges(int64_t batch, std::optional<int64_t> max_batch_size);

/// Samples of a batch. @param shape of it in words, e.g. "[B, D]", with `dims` dimensions
/// @throws DataError unless there is at least one
int64_t samples_of(const at::Tensor& batch, const char* name, const char* shape, int64_t dims);

/// The samples of `range`; what belongs to the batch as a whole is kept.
template <TensorGroup Group>
Group chunk_of(Group group, const ChunkRange& range) {
  group.tensors([&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.narrow(0, range.begin, range.length);
  });
  if constexpr (requires { group.cut_rest(range.begin, range.length); }) {
    group.cut_rest(range.begin, range.length);
  }
  return group;
}

/// The group on a device, without waiting where the copy can run beside the host.
template <TensorGroup Group>
Group on_device(Group group, const at::Device& device) {
  group.tensors([&](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.to(device, /*non_blocking=*/true);
  });
  return group;
}

/// The tensors of a group in its order, and back.
template <TensorGroup Group>
std::vector<at::Tensor> tensors_of(Group group) {
  std::vector<at::Tensor> tensors;
  group.tensors([&](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}
template <TensorGroup Group>
Group with_tensors(Group group, const std::vector<at::Tensor>& tensors) {
  size_t i = 0;
  group.tensors([&](at::Tensor& tensor) { tensor = tensors.at(i++); });
  return group;
}

/// Images that `options` asks for: the length of the first tensor given, else batch_size.
int64_t sample_batch(const DecoderSampleOptions& options);

}  // namespace dalle2
