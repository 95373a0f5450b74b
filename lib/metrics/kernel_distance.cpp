// SPDX-License-Identifier: MIT
#include "metrics/kernel_distance.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "metrics/still_working.h"

namespace dalle2 {
namespace {

at::Tensor subsets_of(int64_t rows, const KernelOptions& options, at::Generator& generator) {
  std::vector<at::Tensor> drawn;
  for (int64_t subset = 0; subset < options.subsets; ++subset) {
    still_working();
    drawn.push_back(at::randperm(rows, generator, at::kLong).narrow(0, 0, options.subset_size));
  }
  return at::stack(drawn);
}

}  // namespace

KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               at::Generator generator) {
  D2_CHECK(real.size(0) >= options.subset_size && generated.size(0) >= options.subset_size,
           "subsets are drawn without replacement");
  const at::Tensor of_real = subsets_of(real.size(0), options, generator);
  return kernel_distance(
      real, generated, options, of_real, subsets_of(generated.size(0), options, generator));
}

KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               const at::Tensor& of_real,
                               const at::Tensor& of_generated) {
  D2_CHECK(real.size(1) == generated.size(1), "features of one width");
  const double gamma = options.gamma.value_or(1.0 / static_cast<double>(real.size(1)));
  const at::Tensor x = real.to(at::kDouble), y = generated.to(at::kDouble);
  const auto kernel = [&](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor base = at::matmul(a, b.t()).mul_(gamma).add_(options.coef);
    at::Tensor power = base.clone();
    for (int64_t k = 1; k < options.degree; ++k) power.mul_(base);
    return power;
  };
  std::vector<double> distances;
  for (int64_t subset = 0; subset < of_real.size(0); ++subset) {
    still_working();
    const at::Tensor a = x.index_select(0, of_real[subset]);
    const at::Tensor b = y.index_select(0, of_generated[subset]);
    const auto m = static_cast<double>(a.size(0));
    const auto off_diagonal = [](const at::Tensor& k) { return k.sum() - k.trace(); };
    const at::Tensor within = off_diagonal(kernel(a, a)) + off_diagonal(kernel(b, b));
    const at::Tensor between = kernel(a, b).sum();
    distances.push_back((within / (m * (m - 1)) - 2 * between / (m * m)).item<double>());
  }
  const at::Tensor all = at::tensor(distances, at::kDouble);
  const double deviation = all.std(/*unbiased=*/false).item<double>();
  return {all.mean().item<double>(),
          deviation,
          distances.size() > 1 ? deviation / std::sqrt(static_cast<double>(distances.size() - 1))
                               : std::nan("")};
}

}  // namespace dalle2
