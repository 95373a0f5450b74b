// SPDX-License-Identifier: MIT
// Kernels for GPUs, on the processor, and their compilation, which needs no GPU.
#include <ATen/autocast_mode.h>
#include <dlfcn.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/dropout_mask.h"
#include "kernels/emulated_kernels.h"
#include "kernels/gpu/group_norm_silu_on_gpu.h"
#include "kernels/gpu/nvrtc_launcher.h"
#include "kernels/group_norm_silu.h"
#include "support/captured_log.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

constexpr double kGroupEps = 1e-5;

/// Kernels of tensors of the CPU run emulated.
class OnEmulator {
 public:
  OnEmulator() { set_kernel_launcher(at::kCPU, &launcher); }
  ~OnEmulator() { set_kernel_launcher(at::kCPU, nullptr); }
  OnEmulator(const OnEmulator&) = delete;
  OnEmulator& operator=(const OnEmulator&) = delete;

  EmulatedLauncher launcher;
};

double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kDouble) - b).norm() / b.norm()).item<double>();
}

TEST_CASE("the GPU's norm, scale, shift and SiLU is the chain of ATen's, in float64") {
  OnEmulator emulated;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const bool timed = GENERATE(true, false);
  const bool autocast = dtype != at::kFloat && GENERATE(true, false);
  // Groups of one channel and of more than a block's threads, planes of one pixel and of several chunks.
  const auto sizes = GENERATE(std::vector<int64_t>{2, 8, 4, 4, 4},
                              std::vector<int64_t>{1, 6, 1, 1, 2},
                              std::vector<int64_t>{3, 24, 7, 5, 24},
                              std::vector<int64_t>{1, 80, 3, 4, 2},
                              std::vector<int64_t>{1, 2, 129, 130, 1},
                              std::vector<int64_t>{1, 2, 71, 73, 2});
  CAPTURE(sizes, timed, autocast, c10::toString(dtype));
  torch::manual_seed(3);
  const int64_t batch = sizes[0], channels = sizes[1], groups = sizes[4];
  GroupNormSiluInputs given;
  // Far from zero: the sum of squares alone would lose digits.
  given.x = (torch::randn({batch, channels, sizes[2], sizes[3]}) + 5.0).to(dtype);
  given.weight = torch::randn({channels});
  given.bias = torch::randn({channels});
  if (timed) given.scale_shift = torch::randn({batch, 2 * channels}).to(dtype);
  const at::ScalarType result = autocast ? at::kFloat : dtype;
  const at::Tensor dy = torch::randn(given.x.sizes()).to(result);

  GroupNormSiluInputs exact;
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(at::kDouble).set_requires_grad(true) : tensor;
  };
  exact.x = leaf(given.x);
  exact.weight = leaf(given.weight);
  exact.bias = leaf(given.bias);
  exact.scale_shift = leaf(given.scale_shift);
  std::vector<at::Tensor> leaves = {exact.x, exact.weight, exact.bias};
  if (timed) leaves.push_back(exact.scale_shift);
  const at::Tensor y = group_norm_silu_plain(exact, groups, kGroupEps);
  const auto expected = torch::autograd::grad({y}, leaves, {dy.to(at::kDouble)});

  const std::optional<at::Tensor> scale_shift =
      timed ? std::optional(given.scale_shift) : std::nullopt;
  at::autocast::set_autocast_enabled(at::kCPU, autocast);
  const auto [found, moments] =
      group_norm_silu_on_gpu(given.x, given.weight, given.bias, scale_shift, groups, kGroupEps);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const auto [dx, dweight, dbias, dscale_shift] = group_norm_silu_backward_on_gpu(
      dy, given.x, moments, given.weight, given.bias, scale_shift, groups);
  // Sums of up to 17,000 values in float32; results are rounded to the map's type.
  const double digits = dtype == at::kFloat ? 2e-5 : dtype == at::kHalf ? 1e-3 : 6e-3;
  CHECK(found.scalar_type() == result);
  CHECK(distance(found, y.detach()) < digits);
  // One pixel alone has the gradient zero: what is left is rounding.
  const bool has_gradient = expected[0].norm().item<double>() > 1e-3;
  if (has_gradient) CHECK(distance(dx, expected[0]) < 2 * digits);
  CHECK(distance(dweight, expected[1]) < digits);
  CHECK(distance(dbias, expected[2]) < digits);
  REQUIRE(dscale_shift.defined() == timed);
  if (timed) CHECK(distance(dscale_shift, expected[3]) < digits);
  const bool in_packs = sizes[2] * sizes[3] % 4 == 0;
  CHECK(emulated.launcher.launches[in_packs ? "normalize_4" : "normalize_1"] == 1);
  CHECK(emulated.launcher.launches["input_gradients_1"] == (in_packs ? 0 : 1));
}

TEST_CASE("a map that does not begin at a pack is read element by element") {
  OnEmulator emulated;
  const at::Tensor memory = torch::randn({2 * 8 * 16 + 1});
  const at::Tensor x = memory.narrow(0, 1, 2 * 8 * 16).view({2, 8, 4, 4});
  const at::Tensor one = torch::ones({8}), zero = torch::zeros({8});
  const auto [y, moments] = group_norm_silu_on_gpu(x, one, zero, std::nullopt, 2, kGroupEps);
  CHECK(distance(y, at::silu(at::group_norm(x, 2)).to(at::kDouble)) < 1e-5);
  CHECK(emulated.launcher.launches["normalize_1"] == 1);
}

/// As a GPU whose kernels are wrong.
class WrongLauncher : public EmulatedLauncher {
 public:
  void launch(const KernelCall& call, const at::Device& device) override {
    if (call.kernel != "affine_gradients") EmulatedLauncher::launch(call, device);
  }
};

TEST_CASE("a GPU whose kernel is wrong is found out, and takes ATen's operations") {
  WrongLauncher wrong;
  CapturedLog log;
  set_kernel_launcher(at::kCPU, &wrong);
  const at::Tensor x = torch::randn({2, 8, 4, 4});
  CHECK_FALSE(has_group_norm_silu_on_gpu(x));
  CHECK_FALSE(has_group_norm_silu_on_gpu(x));  // known now
  set_kernel_launcher(at::kCPU, nullptr);
  CHECK(
      log.count(
          "the kernels of normalisation and activation are not used for Float on cpu: the results differ") ==
      1);
}

TEST_CASE("a mask of a GPU has the processor's bits, and hangs on the sample's number alone") {
  OnEmulator emulated;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const at::Tensor host = torch::empty({5, 7, 11}, dtype), device = torch::empty_like(host);
  fill_dropout_mask_(host, 0x123456789ABCDEF0ULL, 3, 0.7);
  const KernelProgram program{"dropout_mask", dtype, dtype};
  launch_kernel(host.device(),
                program,
                "dropout_mask",
                {{2, 1}, 64},
                device.mutable_data_ptr(),
                0x123456789ABCDEF0ULL,
                static_cast<const unsigned long long*>(nullptr),
                static_cast<long long>(0),
                static_cast<long long>(3),
                static_cast<long long>(77),
                static_cast<long long>(5 * 77),
                static_cast<unsigned>(std::llround(0.7 * 16777216)),
                static_cast<float>(1 / 0.7));
  CHECK(at::equal(host, device));
  const at::Tensor by_operations = torch::empty_like(host);
  fill_dropout_mask_on_gpu_(device.zero_(), 0x123456789ABCDEF0ULL, 3, 0.7);
  CHECK(at::equal(host, device));
  CHECK(emulated.launcher.launches["dropout_mask"] == 4);  // the check takes two
  set_kernel_launcher(at::kCPU, nullptr);
  fill_dropout_mask_on_gpu_(by_operations, 0x123456789ABCDEF0ULL, 3, 0.7);
  CHECK(at::equal(host, by_operations));
  const at::Tensor later = torch::empty({3, 7, 11}, dtype);
  fill_dropout_mask_(later, 0x123456789ABCDEF0ULL, 5, 0.7);
  CHECK(at::equal(later, host.narrow(0, 2, 3)));
  CHECK_FALSE(at::equal(host[0], host[1]));
}

TEST_CASE("a mask whose seed lies on the device has the bits of the number") {
  OnEmulator emulated;
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  constexpr uint64_t kSeed = 0xFEDCBA9876543210ULL;
  const int64_t place = GENERATE(-2, 0, 5);
  const at::Tensor seed = at::tensor({static_cast<int64_t>(kSeed), int64_t{1}}, at::kLong);
  const at::Tensor expected = torch::empty({4, 50}, dtype), found = torch::empty_like(expected);
  fill_dropout_mask_(expected, dropout_address(kSeed, place), 1, 0.6);
  const auto check = [&](const auto& fill) {
    fill(found.zero_(), seed, place, 0.6);
    CHECK(at::equal(found, expected));
  };
  check(fill_dropout_mask_from_);
  check(fill_dropout_mask_from_on_gpu_);  // by the kernel
  set_kernel_launcher(at::kCPU, nullptr);
  check(fill_dropout_mask_from_on_gpu_);  // by ATen's operations
}

TEST_CASE("masks keep the share that they should, and others of other addresses") {
  const at::Tensor mask = torch::empty({64, 4096}), other = torch::empty_like(mask);
  fill_dropout_mask_(mask, 1, 0, 0.9);
  fill_dropout_mask_(other, 2, 0, 0.9);
  const double n = 64 * 4096, deviation = std::sqrt(0.9 * 0.1 / n);
  const auto kept = [](const at::Tensor& tensor) {
    return tensor.ne(0).to(at::kDouble).mean().item<double>();
  };
  CHECK(std::abs(kept(mask) - 0.9) < 5 * deviation);
  CHECK(mask.eq(0).logical_or(mask.eq(1 / 0.9F)).all().item<bool>());
  // Of independent masks 0.81 are kept by both.
  CHECK(std::abs(kept(mask * other) - 0.81) < 5 * std::sqrt(0.81 * 0.19 / n));
  CHECK(std::abs(kept(mask.narrow(0, 0, 32) * mask.narrow(0, 32, 32)) - 0.81) <
        5 * std::sqrt(0.81 * 0.19 * 2 / n));
  fill_dropout_mask_(mask, 3, 0, 1.0);
  CHECK(mask.eq(1).all().item<bool>());
}

#ifdef DALLE2_NVRTC_LIBRARY

TEST_CASE("all kernels compile for GPUs, known and newer") {
  void* const library = dlopen(DALLE2_NVRTC_LIBRARY, RTLD_LAZY);
  REQUIRE(library != nullptr);
  const Nvrtc nvrtc(library);
  const std::vector<int> capabilities = nvrtc.capabilities();
  REQUIRE(capabilities.size() > 3);
  const std::vector<const char*> kernels = {"plane_sums_1",
                                            "plane_sums_4",
                                            "group_moments",
                                            "normalize_1",
                                            "normalize_4",
                                            "gradient_sums_1",
                                            "gradient_sums_4",
                                            "group_gradients",
                                            "input_gradients_1",
                                            "input_gradients_4",
                                            "affine_gradients"};
  for (const at::ScalarType element : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::string code = nvrtc.compile({"group_norm_silu", element, at::kFloat}, 90);
    CHECK(code.substr(1, 3) == "ELF");
    for (const char* kernel : kernels) CHECK_THAT(code, Contains(std::string(".text.") + kernel));
    CHECK_THAT(nvrtc.compile({"dropout_mask", element, element}, 80),
               Contains(".text.dropout_mask"));
  }
  // As text, which the driver translates.
  CHECK_THAT(nvrtc.compile({"dropout_mask", at::kFloat, at::kFloat}, capabilities.back() + 7),
             Contains(".visible .entry dropout_mask"));
  CHECK_THROWS_WITH(nvrtc.compile({"dropout_mask", at::kFloat, at::kFloat}, 35),
                    Contains("compute capability 3.5 is too old"));
}

#endif

TEST_CASE("without a driver there are no kernels, which is said once") {
  if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) return;
  CHECK(nvrtc_launcher() == nullptr);
  CHECK(kernel_launcher(at::kCUDA) == nullptr);
}

}  // namespace
}  // namespace dalle2::test
