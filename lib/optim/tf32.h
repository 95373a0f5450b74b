// SPDX-License-Identifier: MIT
// TF32, the short float32 of NVIDIA's GPUs since Ampere: its products have 10 bits of mantissa in the
// place of 23 and are several times as fast. The setting is the process's; the CPU knows none.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "config/reading/reflect.h"

namespace dalle2 {

/// From now on float32 on CUDA is TF32 there.
void use_tf32(Tf32 where);
/// What is set.
Tf32 tf32_in_use();
/// "TF32 in convolutions", for people. Empty for the CPU.
std::string tf32_text(Tf32 where, const at::Device& device);

/// As long as it lives, float32 is float32 on CUDA: TF32 moves a feature of a network by 1e-3. Not for two
/// threads at once.
class PlainFloat32 {
 public:
  PlainFloat32() : earlier_(tf32_in_use()) { use_tf32(Tf32::no); }
  ~PlainFloat32() { use_tf32(earlier_); }
  PlainFloat32(const PlainFloat32&) = delete;
  PlainFloat32& operator=(const PlainFloat32&) = delete;

 private:
  Tf32 earlier_;
};

}  // namespace dalle2
