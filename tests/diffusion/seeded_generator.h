// SPDX-License-Identifier: MIT
#pragma once

#include <torch/torch.h>
#include <cstdint>

namespace dalle2::test {

/// A generator on the CPU that begins at a seed.
inline at::Generator generator_of(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

}  // namespace dalle2::test
