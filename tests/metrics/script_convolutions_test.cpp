// SPDX-License-Identifier: MIT
#include "metrics/script/script_archive.h"

#include <torch/script.h>

#include <catch2/catch.hpp>
#include <string>

#include "kernels/cpu_algorithms.h"

namespace dalle2::test {
namespace {

torch::jit::Module frozen(const std::string& body) {
  torch::manual_seed(3);
  torch::jit::Module module("Network");
  module.register_parameter("w", at::randn({32, 32, 3, 3}) / 17, /*is_buffer=*/false);
  module.register_parameter("grouped", at::randn({32, 16, 3, 3}) / 12, /*is_buffer=*/false);
  module.register_parameter("b", at::randn({32}), /*is_buffer=*/false);
  module.define("def forward(self, x):\n  return " + body + "\n");
  module.eval();
  return torch::jit::freeze(module);
}

struct Answer {
  at::Tensor y, gradient;
};
Answer answer(torch::jit::Module& network) {
  torch::manual_seed(4);
  const at::Tensor x =
      at::randn({2, 32, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const at::Tensor y = network.forward({x}).toTensor();
  return {y.detach(), torch::autograd::grad({y.sin().sum()}, {x})[0]};
}

double relative_difference_of(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

TEST_CASE("a frozen network computes its convolutions with our own, and answers the same") {
  const std::string body = GENERATE(
      "torch.conv2d(x, self.w, self.b, [1, 1], [1, 1], [1, 1], 1).relu_()",
      "torch.conv2d(x, self.w, None, [2, 2], [0, 0], [1, 1], 1)",
      "torch._convolution(x, self.w, self.b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, "
      "True, True)");
  CAPTURE(body);
  torch::jit::Module before = frozen(body), after = frozen(body);
  REQUIRE(use_own_convolutions(after, at::kCPU) == 1);
  for (int pass = 0; pass < 3; ++pass) {  // later ones are optimised
    const Answer expected = answer(before), found = answer(after);
    // float32 and another order of sums: up to 3e-6 with tiles, 1e-6 without, each.
    CHECK(relative_difference_of(found.y, expected.y) < 5e-6);
    CHECK(relative_difference_of(found.gradient, expected.gradient) < 5e-6);
  }
}

TEST_CASE("other convolutions, and other devices', stay as they are") {
  for (
      const char* body :
      {"torch.conv2d(x, self.grouped, self.b, [1, 1], [1, 1], [1, 1], 2)",
       "torch.conv2d(x, self.w, self.b, [1, 1], [2, 2], [2, 2], 1)",
       "torch.conv2d(x, self.w, self.b, [1, 2], [1, 1], [1, 1], 1)",
       "torch.conv2d(x, self.w + x.mean(), self.b, [1, 1], [1, 1], [1, 1], 1)",
       "torch._convolution(x, self.w, self.b, [1, 1], [1, 1], [1, 1], True, [0, 0], 1, False, False, "
       "True, True)"}) {
    CAPTURE(body);
    torch::jit::Module network = frozen(body);
    CHECK(use_own_convolutions(network, at::kCPU) == 0);
    CHECK(answer(network).y.isfinite().all().item<bool>());
  }
  torch::jit::Module network = frozen("torch.conv2d(x, self.w, self.b, [1, 1], [1, 1], [1, 1], 1)");
  CHECK(use_own_convolutions(network, at::Device(at::kCUDA, 0)) == 0);
  const PlainAlgorithms plain;
  CHECK(use_own_convolutions(network, at::kCPU) == 0);
}

}  // namespace
}  // namespace dalle2::test
