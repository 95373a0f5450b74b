// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Context.h>

namespace dalle2 {

/// As long as it lives, float32 is float32 on CUDA: no TF32, whose products have 10 bits of mantissa
/// and move a feature by 1e-3. Not for two threads at once: the setting is the process's.
class PlainFloat32 {
 public:
  PlainFloat32() : convolutions_(precision(Op::CONV)), products_(precision(Op::MATMUL)) {
    // The older switch has to agree with the newer, or LibTorch refuses to multiply.
    if (had_products()) context().setAllowTF32CuBLAS(false);
    set(Op::CONV, at::Float32Precision::IEEE);
    set(Op::MATMUL, at::Float32Precision::IEEE);
  }
  ~PlainFloat32() {
    if (had_products()) context().setAllowTF32CuBLAS(true);
    set(Op::CONV, convolutions_);
    set(Op::MATMUL, products_);
  }
  PlainFloat32(const PlainFloat32&) = delete;
  PlainFloat32& operator=(const PlainFloat32&) = delete;

 private:
  using Op = at::Float32Op;
  static at::Context& context() { return at::globalContext(); }
  static at::Float32Precision precision(Op op) {
    return context().float32Precision(at::Float32Backend::CUDA, op);
  }
  static void set(Op op, at::Float32Precision precision) {
    context().setFloat32Precision(at::Float32Backend::CUDA, op, precision);
  }
  bool had_products() const { return products_ == at::Float32Precision::TF32; }

  at::Float32Precision convolutions_, products_;
};

}  // namespace dalle2
