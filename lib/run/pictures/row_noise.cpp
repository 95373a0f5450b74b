// SPDX-License-Identifier: MIT
#include "run/pictures/row_noise.h"

#include <torch/types.h>

#include <memory>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "model/random.h"
#include "run/device/device.h"

namespace dalle2 {

NoiseSource noise_by_row(
    int64_t seed, int64_t first, int64_t count, const at::Device& device, int64_t candidates) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return noise_by_row(seed, rows, device, candidates);
}

NoiseSource noise_by_row(int64_t seed,
                         const std::vector<int64_t>& rows,
                         const at::Device& device,
                         int64_t candidates) {
  auto generators = std::make_shared<std::vector<at::Generator>>();
  for (const int64_t row : rows) {
    for (int64_t candidate = 0; candidate < candidates; ++candidate) {
      generators->push_back(make_generator(
          {.seed = seed, .purpose = "sample", .epoch = candidate, .step = row}, at::kCPU));
    }
  }
  return [generators, device](at::IntArrayRef sizes) {
    D2_CHECK(sizes.at(0) == static_cast<int64_t>(generators->size()),
             "noise of {} rows was asked for, there are {}",
             sizes.at(0),
             generators->size());
    std::vector<at::Tensor> drawn;
    for (at::Generator& generator : *generators) {
      drawn.push_back(at::randn(sizes.slice(1), generator, at::TensorOptions(at::kFloat)));
    }
    at::Tensor noise = at::stack(drawn);
    copy_to_device(device, {&noise});
    return noise;
  };
}

}  // namespace dalle2
