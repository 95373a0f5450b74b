// SPDX-License-Identifier: MIT
#include "kernels/dropout_mask.h"

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15ULL, kFirst = 0xBF58476D1CE4E5B9ULL,
                   kSecond = 0x94D049BB133111EBULL;

/// The key of a sample. @param address of the pass and the place in the network
uint64_t dropout_key(uint64_t address, int64_t sample) {
  const uint64_t mixed = address + static_cast<uint64_t>(sample) * kGamma;
  return (mixed ^ (mixed >> 27)) * kFirst;
}

/// 24 bits: those of output number `index` of SplitMix64 that begins at the key (Steele, Lea & Flood 2014).
uint32_t dropout_bits(uint64_t key, uint64_t index) {
  uint64_t x = key + (index + 1) * kGamma;
  x = (x ^ (x >> 30)) * kFirst;
  x = (x ^ (x >> 27)) * kSecond;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 40);
}

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
      const uint64_t key = dropout_key(address, first_sample + sample);
      for (; begin < stop; ++begin) {
        const auto index = static_cast<uint64_t>(begin - sample * per_sample);
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

/// The same bits by ATen's operations, whose int64 wraps around as unsigned numbers do.
at::Tensor& fill_by_operations(at::Tensor& mask, const AddressSource& source, double keep) {
  if (mask.numel() == 0) return mask;
  const auto options = mask.options().dtype(at::kLong);
  const auto wrapped = [](uint64_t value) { return std::bit_cast<int64_t>(value); };
  const auto mixed = [&](const at::Tensor& x, int64_t shift, uint64_t factor) {
    // Zeros come in from the left, as in unsigned numbers.
    const at::Tensor shifted =
        x.bitwise_right_shift(shift).bitwise_and_((int64_t{1} << (64 - shift)) - 1);
    return shifted.bitwise_xor_(x).mul_(wrapped(factor));
  };
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
  return mask.mul_(static_cast<float>(1 / keep));
}

at::Tensor& fill_on_gpu(at::Tensor& mask, int64_t address, int64_t first_sample, double keep) {
  return fill_by_operations(mask, {address, first_sample}, keep);
}

at::Tensor& fill_from_on_gpu(at::Tensor& mask, const at::Tensor& seed, int64_t place, double keep) {
  return fill_by_operations(mask, {0, 0, seed, place}, keep);
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
  const uint64_t address = seed ^ (static_cast<uint64_t>(place) * kGamma);
  return (address ^ (address >> 30)) * kFirst;
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

}  // namespace dalle2
