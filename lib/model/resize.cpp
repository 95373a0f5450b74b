// SPDX-License-Identifier: MIT
#include "model/resize.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

namespace dalle2 {
namespace {

// Keys (1981), a = -1/2.
float cubic(float x) {
  const float a = std::abs(x);
  if (a <= 1.0F) return 1.5F * a * a * a - 2.5F * a * a + 1.0F;
  if (a <= 2.0F) return -0.5F * a * a * a + 2.5F * a * a - 4.0F * a + 2.0F;
  return 0.0F;
}

// The resampling of one axis as a matrix [out, in]. Positions are float32 as in the package, whose
// choice of taps at exact boundaries depends on that rounding.
at::Tensor axis_weights(int64_t in, int64_t out, double factor) {
  const double shrink = factor < 1.0 ? factor : 1.0;
  const double support = 4.0 / shrink;
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const int64_t taps = static_cast<int64_t>(std::ceil(support - kEps));
  const float centre_in = static_cast<float>(static_cast<double>(in - 1) / 2.0);
  const float centre_out = static_cast<float>(static_cast<double>(out - 1) / (2.0 * factor));
  const at::Tensor weights = at::zeros({out, in}, at::kFloat);
  auto table = weights.accessor<float, 2>();
  std::vector<float> row(static_cast<size_t>(taps));
  for (int64_t o = 0; o < out; ++o) {
    const float position =
        static_cast<float>(o) / static_cast<float>(factor) + centre_in - centre_out;
    const float left =
        std::ceil(position - static_cast<float>(support / 2.0) - static_cast<float>(kEps));
    float sum = 0.0F;
    for (int64_t t = 0; t < taps; ++t) {
      const float distance = position - (left + static_cast<float>(t));
      const float scaled = static_cast<float>(shrink);
      row[static_cast<size_t>(t)] =
          shrink < 1.0 ? scaled * cubic(scaled * distance) : cubic(distance);
      sum += row[static_cast<size_t>(t)];
    }
    if (sum == 0.0F) sum = 1.0F;
    // Weights outside the image are part of the sum, but meet only zeros.
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t i = static_cast<int64_t>(left) + t;
      if (i >= 0 && i < in) table[o][i] = row[static_cast<size_t>(t)] / sum;
    }
  }
  return weights;
}

/// The same on a device, made and copied there once for each size.
at::Tensor axis_weights_on(const at::TensorOptions& options,
                           int64_t in,
                           int64_t out,
                           double factor) {
  struct Table {
    int64_t in, out;
    double factor;
    at::TensorOptions options;
    at::Tensor weights;
  };
  static std::mutex mutex;
  static auto* const tables = new std::vector<Table>;  // a GPU's outlive the program's end
  const std::lock_guard lock(mutex);
  for (const Table& table : *tables) {
    if (table.in == in && table.out == out && table.factor == factor &&
        table.options.device() == options.device() && table.options.dtype() == options.dtype()) {
      return table.weights;
    }
  }
  // A step may need it for its gradients after sampling has made it.
  const c10::InferenceMode no_inference(false);
  const c10::NoGradGuard no_grad;
  constexpr size_t kMostTables = 64;
  if (tables->size() == kMostTables) tables->erase(tables->begin());
  tables->push_back({in, out, factor, options, axis_weights(in, out, factor).to(options)});
  return tables->back().weights;
}

at::Tensor resample(const at::Tensor& image, int64_t size) {
  const int64_t height = image.size(2);
  const int64_t width = image.size(3);
  const double factor = static_cast<double>(size) / static_cast<double>(width);
  const int64_t out_height = (height * size + width - 1) / width;  // ceil(height * factor)
  const at::ScalarType dtype = at::promote_types(image.scalar_type(), at::kFloat);
  // Autocast would round pixels to bfloat16.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::TensorOptions options = at::device(image.device()).dtype(dtype);
  const at::Tensor rows = axis_weights_on(options, height, out_height, factor);
  const at::Tensor columns = axis_weights_on(options, width, size, factor);
  const at::Tensor tall = at::matmul(rows, image.to(dtype));
  return at::matmul(tall, columns.t());
}

}  // namespace

at::Tensor resize_image_to(const at::Tensor& image,
                           int64_t size,
                           std::optional<std::pair<double, double>> clamp_range,
                           bool nearest) {
  if (image.size(3) == size) return image;
  at::Tensor out = nearest ? at::upsample_nearest2d(image, {size, size}) : resample(image, size);
  if (clamp_range) out = out.clamp(clamp_range->first, clamp_range->second);
  return out;
}

}  // namespace dalle2
