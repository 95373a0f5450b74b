// SPDX-License-Identifier: MIT
// Kernel inception distance (Binkowski et al. 2018, arXiv 1801.01401, section 4).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dalle2 {

struct KernelOptions {
  int64_t subsets = 100;
  int64_t subset_size = 1000;
  int64_t degree = 3;
  std::optional<double> gamma = std::nullopt;  ///< none: 1 / d
  double coef = 1;
};

struct KernelDistance {
  double mean = 0;
  double deviation = 0;       ///< of the subsets, over their number: torchmetrics' KID_std
  double standard_error = 0;  ///< of the mean
};

/// Squared maximum mean discrepancy, unbiased, with the kernel (gamma x.y + coef)^degree, of subsets
/// that are drawn without replacement.
/// @param real [n, d] @param generated [m, d]; n and m at least subset_size, which is at least 2
KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               at::Generator generator);

/// The same of given subsets. @param of_real, of_generated [subsets, subset_size] int64, rows
KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               const at::Tensor& of_real,
                               const at::Tensor& of_generated);

}  // namespace dalle2
