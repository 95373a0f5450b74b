// SPDX-License-Identifier: MIT
#include "optim/tf32.h"

#include <ATen/Context.h>

#include <array>

namespace dalle2 {
namespace {

bool is_tf32(at::Float32Op op) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, op) ==
         at::Float32Precision::TF32;
}

}  // namespace

void use_tf32(Tf32 where) {
  at::Context& context = at::globalContext();
  const bool products = where == Tf32::all, convolutions = where != Tf32::no;
  // The older switch of products has to agree with the newer one, or LibTorch refuses to multiply.
  if (is_tf32(at::Float32Op::MATMUL) != products) context.setAllowTF32CuBLAS(products);
  context.setFloat32Precision(
      at::Float32Backend::CUDA,
      at::Float32Op::CONV,
      convolutions ? at::Float32Precision::TF32 : at::Float32Precision::IEEE);
}

Tf32 tf32_in_use() {
  if (is_tf32(at::Float32Op::MATMUL)) return Tf32::all;
  return is_tf32(at::Float32Op::CONV) ? Tf32::convolutions : Tf32::no;
}

std::string tf32_text(Tf32 where, const at::Device& device) {
  if (device.is_cpu()) return "";
  constexpr std::array kTexts = {
      "no TF32", "TF32 in convolutions", "TF32 in convolutions and matrix products"};
  return kTexts[static_cast<size_t>(where)];
}

}  // namespace dalle2
