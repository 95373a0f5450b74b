// SPDX-License-Identifier: MIT
#include "model/clip/embedding_ways.h"

#include <torch/types.h>

namespace dalle2 {
namespace {

at::Tensor length_of(const at::Tensor& rows) {
  return at::norm(rows, 2, at::IntArrayRef{-1}, /*keepdim=*/true);  // [N, 1]
}

}  // namespace

at::Tensor slerp(const at::Tensor& from, const at::Tensor& to, double share) {
  constexpr double kNoAngle = 1e-6;  // its sine is then mostly rounding
  const at::Tensor a = from.to(at::kDouble), b = to.to(at::kDouble);
  const at::Tensor a_length = length_of(a), b_length = length_of(b);
  const at::Tensor a_unit = a / a_length, b_unit = b / b_length;
  const at::Tensor angle = (a_unit * b_unit).sum(-1, true).clamp(-1, 1).acos();  // [N, 1]
  const at::Tensor sine = angle.sin();
  const at::Tensor straight = sine < kNoAngle;
  const auto weight = [&](double part) {
    return at::where(straight, part, (angle * part).sin() / sine.clamp_min(kNoAngle));
  };
  const at::Tensor direction = weight(1 - share) * a_unit + weight(share) * b_unit;
  return (direction * at::lerp(a_length, b_length, share)).to(from.scalar_type());
}

at::Tensor text_difference(const at::Tensor& from, const at::Tensor& to) {
  const at::Tensor difference = to.to(at::kDouble) - from.to(at::kDouble);
  return (difference / length_of(difference)).to(from.scalar_type());
}

}  // namespace dalle2
