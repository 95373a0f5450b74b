// SPDX-License-Identifier: MIT
#include "optim/tf32.h"

#include <ATen/Context.h>

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

TEST_CASE("TF32 is in force where it was asked for, and nowhere else") {
  const at::Context& context = at::globalContext();
  CHECK(tf32_in_use() == Tf32::convolutions);  // LibTorch's default
  for (const Tf32 where :
       {Tf32::all, Tf32::no, Tf32::convolutions, Tf32::all, Tf32::convolutions}) {
    use_tf32(where);
    CHECK(tf32_in_use() == where);
    CHECK(context.allowTF32CuBLAS() == (where == Tf32::all));
    CHECK(context.allowTF32CuDNN(at::Float32Op::CONV) == (where != Tf32::no));
  }
}

TEST_CASE("what is computed in plain float32 leaves the setting as it was") {
  for (const Tf32 where : {Tf32::no, Tf32::all, Tf32::convolutions}) {
    use_tf32(where);
    {
      const PlainFloat32 plain;
      CHECK(tf32_in_use() == Tf32::no);
      const PlainFloat32 within;
      CHECK(tf32_in_use() == Tf32::no);
    }
    CHECK(tf32_in_use() == where);
  }
}

TEST_CASE("people read of TF32 only where there is some") {
  CHECK(tf32_text(Tf32::all, at::kCPU).empty());
  CHECK(tf32_text(Tf32::no, at::kCUDA) == "no TF32");
  CHECK(tf32_text(Tf32::convolutions, at::kCUDA) == "TF32 in convolutions");
  CHECK(tf32_text(Tf32::all, at::kCUDA) == "TF32 in convolutions and matrix products");
}

}  // namespace
}  // namespace dalle2
