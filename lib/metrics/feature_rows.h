// SPDX-License-Identifier: MIT
// The features of the images of an evaluation, whoever computed them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace dalle2 {

/// Features by the number of their image, so that neither the batches nor the ranks that they came
/// by change what is computed from them.
class FeatureRows {
 public:
  /// @param index [n] int64, of the images in the evaluation @param features [n, d] float32, finite
  void add(const at::Tensor& index, const at::Tensor& features);

  int64_t count() const;
  /// [n, d] float32 on the CPU, in the order of the images; each image once, as it came first.
  at::Tensor rows() const;
  /// [n] int64, of the images in rows().
  at::Tensor index() const;

  /// Rank 0 takes over what the other ranks have, and these have nothing any more. All have to call
  /// it. @param what for reports: "features"
  void gather(ProcessGroup& group, const std::string& what);

 private:
  void settle() const;

  mutable std::vector<at::Tensor> indices_, parts_;  // one each after settle()
  mutable bool settled_ = true;
};

}  // namespace dalle2
