// SPDX-License-Identifier: MIT
// Kernels of ours on the fake device: how operations find them, and that nothing waits for them.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "kernels/emulated_kernels.h"
#include "kernels/gpu/group_norm_silu_on_gpu.h"
#include "kernels/group_norm_silu.h"
#include "support/fake_device.h"
#include "support/fake_device_parts.h"

namespace dalle2::test {
namespace {

TEST_CASE(
    "normalisation and activation by kernels of ours take seven launches, and nothing waits") {
  torch::manual_seed(5);
  constexpr int64_t kGroups = 4;
  constexpr double kEps = 1e-5;
  const at::Tensor x = torch::randn({2, 8, 6, 6}), dy = torch::randn({2, 8, 6, 6});
  const at::Tensor weight = torch::randn({8}), bias = torch::randn({8}),
                   scale_shift = torch::randn({2, 16});
  const auto leaf = [](const at::Tensor& tensor) { return tensor.clone().set_requires_grad(true); };
  const GroupNormSiluInputs leaves{leaf(x), leaf(weight), leaf(bias), leaf(scale_shift)};
  const at::Tensor y = group_norm_silu_plain(leaves, kGroups, kEps);
  std::vector<at::Tensor> expected =
      torch::autograd::grad({y}, {leaves.x, leaves.weight, leaves.bias, leaves.scale_shift}, {dy});
  expected.push_back(y.detach());

  const at::Device device = fake_device();
  const auto on_device = [&](const at::Tensor& tensor) { return tensor.to(device); };
  const at::Tensor there = on_device(x), grad = on_device(dy), w = on_device(weight),
                   b = on_device(bias), s = on_device(scale_shift);
  EmulatedLauncher launcher;
  launcher.host_address = &host_address;
  set_kernel_launcher(device.type(), &launcher);
  CHECK(has_group_norm_silu_on_gpu(there));  // compares with ATen's operations on that device
  launcher.launches.clear();
  std::vector<at::Tensor> found;
  const auto counts = counts_of([&] {
    const auto [out, moments] = group_norm_silu_on_gpu(there, w, b, s, kGroups, kEps);
    const auto [dx, dweight, dbias, dscale_shift] =
        group_norm_silu_backward_on_gpu(grad, there, moments, w, b, s, kGroups);
    found = {dx, dweight, dbias, dscale_shift, out};
  });
  set_kernel_launcher(device.type(), nullptr);
  const std::map<std::string, int64_t> launches = {{"plane_sums_4", 1},
                                                   {"group_moments", 1},
                                                   {"normalize_4", 1},
                                                   {"gradient_sums_4", 1},
                                                   {"group_gradients", 1},
                                                   {"input_gradients_4", 1},
                                                   {"affine_gradients", 1}};
  CHECK(launcher.launches == launches);
  INFO(counts.text());
  CHECK(counts.stalls() == 0);
  CHECK(counts.operations == 0);  // of LibTorch's
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    INFO("answer " << i);
    const at::Tensor rest = found[i].to(at::kCPU) - expected[i];
    CHECK((rest.norm() / expected[i].norm()).item<double>() < 1e-5);
  }
}

}  // namespace
}  // namespace dalle2::test
