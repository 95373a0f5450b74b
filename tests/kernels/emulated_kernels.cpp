// SPDX-License-Identifier: MIT
// The kernels for GPUs, compiled for the processor.
#include "kernels/emulated_kernels.h"

#include <math.h>

#include <stdexcept>
#include <tuple>

#include "kernels/cuda_emulator.h"

namespace dalle2::test {
namespace {

using namespace emulator;  // the names that CUDA C++ has everywhere

#define __device__
#define __shared__ static
#define KERNEL static void

namespace of_float32 {
#define ELEMENT Float32
#define RESULT Float32
#include "kernels/gpu/element.cuh"
// its parts follow
#include "kernels/gpu/dropout_bits.cuh"
#include "kernels/gpu/dropout_mask.cuh"
#include "kernels/gpu/group_norm_silu.cuh"
#undef RESULT
#undef ELEMENT
}  // namespace of_float32

namespace of_bfloat16 {
#define ELEMENT BFloat16
#define RESULT BFloat16
#include "kernels/gpu/element.cuh"
// its parts follow
#include "kernels/gpu/dropout_bits.cuh"
#include "kernels/gpu/dropout_mask.cuh"
#include "kernels/gpu/group_norm_silu.cuh"
#undef RESULT
#undef ELEMENT
}  // namespace of_bfloat16

namespace of_float16 {
#define ELEMENT Float16
#define RESULT Float16
#include "kernels/gpu/element.cuh"
// its parts follow
#include "kernels/gpu/dropout_bits.cuh"
#include "kernels/gpu/dropout_mask.cuh"
#include "kernels/gpu/group_norm_silu.cuh"
#undef RESULT
#undef ELEMENT
}  // namespace of_float16

namespace of_bfloat16_to_float32 {
#define ELEMENT BFloat16
#define RESULT Float32
#include "kernels/gpu/element.cuh"
// its parts follow
#include "kernels/gpu/dropout_bits.cuh"
#include "kernels/gpu/dropout_mask.cuh"
#include "kernels/gpu/group_norm_silu.cuh"
#undef RESULT
#undef ELEMENT
}  // namespace of_bfloat16_to_float32

namespace of_float16_to_float32 {
#define ELEMENT Float16
#define RESULT Float32
#include "kernels/gpu/element.cuh"
// its parts follow
#include "kernels/gpu/dropout_bits.cuh"
#include "kernels/gpu/dropout_mask.cuh"
#include "kernels/gpu/group_norm_silu.cuh"
#undef RESULT
#undef ELEMENT
}  // namespace of_float16_to_float32

using Name = std::tuple<std::string,
                        std::string,
                        at::ScalarType,
                        at::ScalarType>;  // program, kernel, element, result

const std::map<Name, Kernel>& kernels() {
  static const std::map<Name, Kernel> all = [] {
    std::map<Name, Kernel> made;
#define ADD(program, kernel)                                                                \
  made[{program, #kernel, at::kFloat, at::kFloat}] = kernel_of(&of_float32::kernel);        \
  made[{program, #kernel, at::kBFloat16, at::kBFloat16}] = kernel_of(&of_bfloat16::kernel); \
  made[{program, #kernel, at::kHalf, at::kHalf}] = kernel_of(&of_float16::kernel);          \
  made[{program, #kernel, at::kBFloat16, at::kFloat}] =                                     \
      kernel_of(&of_bfloat16_to_float32::kernel);                                           \
  made[{program, #kernel, at::kHalf, at::kFloat}] = kernel_of(&of_float16_to_float32::kernel);
    ADD("dropout_mask", dropout_mask)
    ADD("group_norm_silu", plane_sums_1)
    ADD("group_norm_silu", plane_sums_4)
    ADD("group_norm_silu", group_moments)
    ADD("group_norm_silu", normalize_1)
    ADD("group_norm_silu", normalize_4)
    ADD("group_norm_silu", gradient_sums_1)
    ADD("group_norm_silu", gradient_sums_4)
    ADD("group_norm_silu", group_gradients)
    ADD("group_norm_silu", input_gradients_1)
    ADD("group_norm_silu", input_gradients_4)
    ADD("group_norm_silu", affine_gradients)
    return made;
  }();
  return all;
}

}  // namespace

void EmulatedLauncher::launch(const KernelCall& call, const at::Device& /*device*/) {
  const auto found =
      kernels().find({call.program.name, call.kernel, call.program.element, call.program.result});
  if (found == kernels().end()) throw std::logic_error("no kernel " + call.kernel);
  ++launches[call.kernel];
  const Translate translate = [&](void* address) {
    return host_address == nullptr || address == nullptr ? address : host_address(address);
  };
  run_grid(call.grid, call.threads, [&] { found->second(call.arguments.data(), translate); });
}

}  // namespace dalle2::test
