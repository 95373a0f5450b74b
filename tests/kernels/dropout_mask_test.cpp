// SPDX-License-Identifier: MIT
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/dropout_mask.h"

namespace dalle2::test {
namespace {

/// What a GPU does, with tensors of the CPU.
template <class... Arguments>
void call_as_gpu(const char* operation, Arguments... arguments) {
  torch::jit::Stack stack = {arguments...};
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(operation, "")
      .callBoxedForDispatchKey(c10::DispatchKey::CUDA, stack);
}

TEST_CASE("a mask of a GPU has the processor's bits, and hangs on the sample's number alone") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16, at::kHalf);
  const at::Tensor host = torch::empty({5, 7, 11}, dtype), device = torch::empty_like(host);
  fill_dropout_mask_(host, 0x123456789ABCDEF0ULL, 3, 0.7);
  call_as_gpu("dalle2::fill_dropout_mask_", device, int64_t{0x123456789ABCDEF0}, int64_t{3}, 0.7);
  CHECK(at::equal(host, device));
  const at::Tensor later = torch::empty({3, 7, 11}, dtype);
  fill_dropout_mask_(later, 0x123456789ABCDEF0ULL, 5, 0.7);
  CHECK(at::equal(later, host.narrow(0, 2, 3)));
  CHECK_FALSE(at::equal(host[0], host[1]));
}

TEST_CASE("masks have the same bits in every version: a resumed run draws those of before") {
  const at::Tensor mask = torch::empty({2, 8});
  fill_dropout_mask_(mask, 0x123456789ABCDEF0ULL, 3, 0.5);
  CHECK(dropout_address(0xFEDCBA9876543210ULL, -2) == 0xCD10A648859D2E3BULL);
  CHECK(at::equal(mask.ne(0),
                  at::tensor({1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0}).view({2, 8}).ne(0)));
}

TEST_CASE("a mask whose seed lies on the device has the bits of the number") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  constexpr uint64_t kSeed = 0xFEDCBA9876543210ULL;
  const int64_t place = GENERATE(-2, 0, 5);
  const at::Tensor seed = at::tensor({static_cast<int64_t>(kSeed), int64_t{1}}, at::kLong);
  const at::Tensor expected = torch::empty({4, 50}, dtype), found = torch::empty_like(expected);
  fill_dropout_mask_(expected, dropout_address(kSeed, place), 1, 0.6);
  fill_dropout_mask_from_(found, seed, place, 0.6);
  CHECK(at::equal(found, expected));
  call_as_gpu("dalle2::fill_dropout_mask_from_", found.zero_(), seed, place, 0.6);
  CHECK(at::equal(found, expected));
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

}  // namespace
}  // namespace dalle2::test
