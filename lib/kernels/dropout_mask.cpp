// SPDX-License-Identifier: MIT
#include "kernels/dropout_mask.h"

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "kernels/gpu/kernel_launcher.h"

#define __device__
#include "kernels/gpu/dropout_bits.cuh"
#undef __device__

namespace dalle2 {
namespace {

constexpr double kBitValues = 16777216;  // 2^24 values of dropout_bits()

/// Elements whose bits are below it are kept.
uint32_t threshold_of(double keep) {
  return static_cast<uint32_t>(std::llround(keep * kBitValues));
}

template <class T>
void fill(T* mask,
          uint64_t address,
          int64_t first_sample,
          int64_t samples,
          int64_t per_sample,
          double keep) {
  constexpr int64_t kGrain = 1 << 14;
  const uint32_t threshold = threshold_of(keep);
  const T kept(static_cast<float>(1 / keep)), dropped(0.0F);
  at::parallel_for(0, samples * per_sample, kGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t sample = begin / per_sample;
      const int64_t stop = std::min(end, (sample + 1) * per_sample);
      const unsigned long long key = dropout_key(address, first_sample + sample);
      for (; begin < stop; ++begin) {
        const auto index = static_cast<unsigned long long>(begin - sample * per_sample);
        mask[begin] = dropout_bits(key, index) < threshold ? kept : dropped;
      }
    }
  });
}

/// Where the address of a mask and the number of its first sample come from: they are given, or follow from numbers on the device.
struct AddressSource {
  int64_t address = 0, first_sample = 0;
  at::Tensor seed =
      {};  ///< [2] int64: the seed, and the first sample; undefined: the numbers above are used
  int64_t place = 0;
};

/// The address as int64, which is what operations take.
at::Tensor& fill_on_cpu(at::Tensor& mask, int64_t address, int64_t first_sample, double keep) {
  const int64_t per_sample = mask.numel() / std::max<int64_t>(1, mask.size(0));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, mask.scalar_type(), "dropout", [&] {
    fill(mask.mutable_data_ptr<scalar_t>(),
         std::bit_cast<uint64_t>(address),
         first_sample,
         mask.size(0),
         per_sample,
         keep);
  });
  return mask;
}

at::Tensor& fill_from_on_cpu(at::Tensor& mask, const at::Tensor& seed, int64_t place, double keep) {
  const int64_t* const numbers = seed.const_data_ptr<int64_t>();
  const uint64_t address = dropout_address(std::bit_cast<uint64_t>(numbers[0]), place);
  return fill_on_cpu(mask, std::bit_cast<int64_t>(address), numbers[1], keep);
}

void fill_by_kernel(at::Tensor& mask, const AddressSource& source, double keep) {
  constexpr int64_t kThreads = 256, kMostBlocks = 4096;
  const int64_t blocks = std::min(kMostBlocks, (mask.numel() + kThreads - 1) / kThreads);
  launch_kernel(mask.device(),
                {"dropout_mask", mask.scalar_type(), mask.scalar_type()},
                "dropout_mask",
                {{blocks, 1}, kThreads},
                mask.mutable_data_ptr(),
                std::bit_cast<unsigned long long>(source.address),
                source.seed.defined() ? source.seed.const_data_ptr() : nullptr,
                static_cast<long long>(source.place),
                static_cast<long long>(source.first_sample),
                static_cast<long long>(mask.numel() / mask.size(0)),
                static_cast<long long>(mask.numel()),
                threshold_of(keep),
                static_cast<float>(1 / keep));
}

/// The same bits by ATen's operations, whose int64 wraps around as unsigned numbers do.
void fill_by_operations(at::Tensor& mask, const AddressSource& source, double keep) {
  const auto options = mask.options().dtype(at::kLong);
  const auto wrapped = [](uint64_t value) { return std::bit_cast<int64_t>(value); };
  const auto mixed = [&](const at::Tensor& x, int64_t shift, uint64_t factor) {
    // Zeros come in from the left, as in unsigned numbers.
    const at::Tensor shifted =
        x.bitwise_right_shift(shift).bitwise_and_((int64_t{1} << (64 - shift)) - 1);
    return shifted.bitwise_xor_(x).mul_(wrapped(factor));
  };
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ULL, kFirst = 0xBF58476D1CE4E5B9ULL,
                     kSecond = 0x94D049BB133111EBULL;
  const int64_t per_sample = mask.numel() / mask.size(0);
  const at::Tensor samples =
      at::arange(source.first_sample, source.first_sample + mask.size(0), options);
  if (source.seed.defined()) samples.add_(source.seed[1]);
  const at::Tensor sums = samples.mul(wrapped(kGamma));
  if (source.seed.defined()) {
    const auto place = static_cast<uint64_t>(source.place);
    sums.add_(mixed(source.seed[0].bitwise_xor(wrapped(place * kGamma)), 30, kFirst));
  } else {
    sums.add_(source.address);
  }
  const at::Tensor keys = mixed(sums, 27, kFirst);
  const at::Tensor steps = at::arange(1, per_sample + 1, options).mul_(wrapped(kGamma));
  const at::Tensor bits =
      mixed(mixed(mixed(keys.unsqueeze(1) + steps, 30, kFirst), 27, kSecond), 31, 1)
          .bitwise_right_shift_(40)
          .bitwise_and_((int64_t{1} << 24) - 1);
  mask.copy_(bits.lt(static_cast<int64_t>(threshold_of(keep))).view(mask.sizes()));
  mask.mul_(static_cast<float>(1 / keep));
}

/// Whether the kernel gives the processor's bits.
bool kernel_agrees(const at::Tensor& like) {
  constexpr double kKeep = 0.7;
  constexpr int64_t kAddress = 0x123456789ABCDEF, kFirstSample = 5, kPlace = -3;
  at::Tensor expected = at::empty({3, 700}, like.options().device(at::kCPU));
  at::Tensor found = at::empty({3, 700}, like.options());
  fill_on_cpu(expected, kAddress, kFirstSample, kKeep);
  fill_by_kernel(found, {kAddress, kFirstSample}, kKeep);
  if (!at::equal(found.cpu(), expected)) return false;
  const at::Tensor seed = at::tensor({kAddress, kFirstSample}, at::kLong);
  fill_from_on_cpu(expected, seed, kPlace, kKeep);
  fill_by_kernel(found, {0, 0, seed.to(like.device()), kPlace}, kKeep);
  return at::equal(found.cpu(), expected);
}

at::Tensor& fill(at::Tensor& mask, const AddressSource& source, double keep) {
  if (mask.numel() == 0) return mask;
  const at::ScalarType dtype = mask.scalar_type();
  const bool has_type = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  const bool has_kernel =
      has_type && has_kernels(mask.device(), {"dropout_mask", dtype, dtype}, "dropout", [&] {
        return kernel_agrees(mask);
      });
  has_kernel ? fill_by_kernel(mask, source, keep) : fill_by_operations(mask, source, keep);
  return mask;
}

at::Tensor& fill_on_gpu(at::Tensor& mask, int64_t address, int64_t first_sample, double keep) {
  return fill(mask, {address, first_sample}, keep);
}

at::Tensor& fill_from_on_gpu(at::Tensor& mask, const at::Tensor& seed, int64_t place, double keep) {
  return fill(mask, {0, 0, seed, place}, keep);
}

TORCH_LIBRARY_FRAGMENT(dalle2, m) {
  m.def(
      "fill_dropout_mask_(Tensor(a!) mask, int address, int first_sample, float keep) -> "
      "Tensor(a!)");
  m.def(
      "fill_dropout_mask_from_(Tensor(a!) mask, Tensor seed, int place, float keep) -> "
      "Tensor(a!)");
}
TORCH_LIBRARY_IMPL(dalle2, CPU, m) {
  m.impl("fill_dropout_mask_", &fill_on_cpu);
  m.impl("fill_dropout_mask_from_", &fill_from_on_cpu);
}
TORCH_LIBRARY_IMPL(dalle2, CUDA, m) {
  m.impl("fill_dropout_mask_", &fill_on_gpu);
  m.impl("fill_dropout_mask_from_", &fill_from_on_gpu);
}

void check_mask(const at::Tensor& mask, double keep) {
  D2_CHECK(mask.is_contiguous() && mask.dim() > 0 && keep > 0 && keep <= 1,
           "a mask of strides {} that keeps {}",
           c10::str(mask.strides()),
           keep);
}

}  // namespace

uint64_t dropout_address(uint64_t seed, int64_t place) {
  return ::dropout_address(seed, place);
}

void fill_dropout_mask_(const at::Tensor& mask,
                        uint64_t address,
                        int64_t first_sample,
                        double keep) {
  check_mask(mask, keep);
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("dalle2::fill_dropout_mask_", "")
                                    .typed<decltype(fill_on_cpu)>();
  at::Tensor filled = mask;
  operation.call(filled, std::bit_cast<int64_t>(address), first_sample, keep);
}

void fill_dropout_mask_from_(const at::Tensor& mask,
                             const at::Tensor& seed,
                             int64_t place,
                             double keep) {
  check_mask(mask, keep);
  D2_CHECK(seed.numel() == 2 && seed.is_contiguous() && seed.scalar_type() == at::kLong &&
               seed.device() == mask.device(),
           "a seed of sizes {} on {}",
           c10::str(seed.sizes()),
           seed.device().str());
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("dalle2::fill_dropout_mask_from_", "")
                                    .typed<decltype(fill_from_on_cpu)>();
  at::Tensor filled = mask;
  operation.call(filled, seed, place, keep);
}

void fill_dropout_mask_on_gpu_(const at::Tensor& mask,
                               uint64_t address,
                               int64_t first_sample,
                               double keep) {
  at::Tensor filled = mask;
  fill_on_gpu(filled, std::bit_cast<int64_t>(address), first_sample, keep);
}

void fill_dropout_mask_from_on_gpu_(const at::Tensor& mask,
                                    const at::Tensor& seed,
                                    int64_t place,
                                    double keep) {
  at::Tensor filled = mask;
  fill_from_on_gpu(filled, seed, place, keep);
}

}  // namespace dalle2
