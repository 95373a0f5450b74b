// SPDX-License-Identifier: MIT
// The features of the images of an evaluation, whoever computed them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// Features by the number of their image, so that neither the batches nor the ranks that they came
/// by change what is computed from them.
class FeatureRows {
 public:
  /// @param index [n] int64, of the images in the evaluation @param features [n, d] float32
  /// @throws DataError naming the image if a feature is not finite
  void add(const at::Tensor& index, const at::Tensor& features, const std::string& of_what);

  int64_t count() const;
  /// [n, d] float32 on the CPU, in the order of the images; each image once, as it came first.
  at::Tensor rows() const;
  /// [n] int64, of the images in rows().
  at::Tensor index() const;

  /// {index, rows}: what merge() takes.
  std::vector<at::Tensor> state() const;
  void merge(const std::vector<at::Tensor>& other);

 private:
  void settle() const;

  mutable std::vector<at::Tensor> indices_, parts_;  // one each after settle()
};

}  // namespace dalle2
