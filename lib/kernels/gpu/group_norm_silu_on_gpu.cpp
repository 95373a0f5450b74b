// SPDX-License-Identifier: MIT
#include "kernels/gpu/group_norm_silu_on_gpu.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/gpu/kernel_launcher.h"
#include "kernels/group_norm_silu.h"

namespace dalle2 {
namespace {

constexpr int64_t kPackWidth = 4;  // elements that a thread takes at once
constexpr int64_t kThreadsOfGroup = 32;
constexpr int64_t kMostChunks = 65535;  // of a grid's second dimension

/// The maps and how the kernels cut them up.
struct Maps {
  int batch, channels, members, pixels, groups;  // members: channels of a group
  int width;                                     // of a pack
  int packs, packs_of_chunk;                     // of a plane
  KernelShape planes;

  Maps(const at::Tensor& x, int64_t group_count, bool is_aligned)
      : batch(static_cast<int>(x.size(0))),
        channels(static_cast<int>(x.size(1))),
        members(channels / static_cast<int>(group_count)),
        pixels(static_cast<int>(x.size(2) * x.size(3))),
        groups(batch * static_cast<int>(group_count)),
        width(is_aligned && pixels % kPackWidth == 0 ? kPackWidth : 1),
        packs(pixels / width) {
    constexpr int kFewestThreads = 32, kMostThreads = 256, kPacksOfThread = 16;
    const int threads =
        std::clamp(static_cast<int>(std::bit_ceil(static_cast<unsigned>(packs))) / 4,
                   kFewestThreads,
                   kMostThreads);
    packs_of_chunk = threads * kPacksOfThread;
    while (chunks() > kMostChunks) packs_of_chunk *= 2;
    planes = {{int64_t{batch} * channels, chunks()}, threads};
  }

  int chunks() const { return (packs + packs_of_chunk - 1) / packs_of_chunk; }
  std::string kernel(const std::string& name) const { return fmt::format("{}_{}", name, width); }
};

bool is_aligned(const at::Tensor& tensor) {
  constexpr uintptr_t kAlignment = 16;
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment == 0;
}

/// @param y or dy
KernelProgram program_of(const at::Tensor& x, const at::Tensor& y) {
  return {"group_norm_silu", x.scalar_type(), y.scalar_type()};
}

/// Of y: autocast wants norms in float32, as ATen's have it.
at::ScalarType result_type(const at::Tensor& x) {
  return at::autocast::is_autocast_enabled(x.device().type()) ? at::kFloat : x.scalar_type();
}

/// weight, bias [C] and scale_shift [B, 2 C], as the kernels read them.
struct AffineInputs {
  at::Tensor weight, bias, scale_shift;

  AffineInputs(const at::Tensor& w, const at::Tensor& b, const std::optional<at::Tensor>& given)
      : weight(w.to(at::kFloat).contiguous()), bias(b.to(at::kFloat).contiguous()) {
    if (given && given->defined()) scale_shift = given->to(at::kFloat).contiguous();
  }
};

const void* const_data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
void* data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}

at::Tensor floats(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

/// @param result type of y
std::tuple<at::Tensor, at::Tensor> normalized(const at::Tensor& x,
                                              const at::Tensor& weight,
                                              const at::Tensor& bias,
                                              const std::optional<at::Tensor>& scale_shift,
                                              int64_t groups,
                                              double eps,
                                              at::ScalarType result) {
  const AffineInputs affine(weight, bias, scale_shift);
  const at::Tensor y = at::empty_like(x, x.options().dtype(result));
  const Maps maps(x, groups, is_aligned(x) && is_aligned(y));
  const at::Tensor parts = floats(x, {maps.planes.grid[0], maps.chunks(), 2});
  const at::Tensor moments = floats(x, {maps.groups, 2});
  const KernelProgram program = program_of(x, y);
  launch_kernel(x.device(),
                program,
                maps.kernel("plane_sums"),
                maps.planes,
                const_data(x),
                data(parts),
                maps.pixels,
                maps.packs,
                maps.packs_of_chunk);
  launch_kernel(x.device(),
                program,
                "group_moments",
                {{maps.groups, 1}, kThreadsOfGroup},
                const_data(parts),
                data(moments),
                maps.members,
                maps.pixels,
                maps.chunks(),
                maps.packs_of_chunk * maps.width,
                static_cast<float>(eps));
  launch_kernel(x.device(),
                program,
                maps.kernel("normalize"),
                maps.planes,
                const_data(x),
                const_data(moments),
                const_data(affine.weight),
                const_data(affine.bias),
                const_data(affine.scale_shift),
                data(y),
                maps.channels,
                maps.members,
                maps.pixels,
                maps.packs,
                maps.packs_of_chunk);
  return {y, moments};
}

/// A map and its groups.
struct CheckedMap {
  std::vector<int64_t> sizes;
  int64_t groups;
  bool has_scale;
};

bool agrees_with_plain(const at::Device& device,
                       const CheckedMap& map,
                       const KernelProgram& types) {
  constexpr double kCheckEps = 1e-5;
  const double limit = types.element == at::kFloat ? 1e-4 : 2e-2;  // of the norm of the difference
  const auto wave = [&](at::IntArrayRef sizes, double step) {
    const int64_t count = c10::multiply_integers(sizes);
    return (at::arange(count, at::kDouble) * step).sin().to(at::kFloat).view(sizes).to(device);
  };
  const auto leaf = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(at::kFloat).clone().set_requires_grad(true) : tensor;
  };
  const int64_t channels = map.sizes[1];
  const at::Tensor x = (wave(map.sizes, 1.3) + 2).to(types.element);
  const at::Tensor dy = (wave(map.sizes, 0.7) + 1).to(types.result);  // sums of it do not cancel
  const at::Tensor weight = wave({channels}, 0.9) + 1, bias = wave({channels}, 0.5);
  at::Tensor scale_shift;
  if (map.has_scale) scale_shift = wave({map.sizes[0], 2 * channels}, 1.1);
  const GroupNormSiluInputs exact{leaf(x), leaf(weight), leaf(bias), leaf(scale_shift)};
  const at::Tensor y = group_norm_silu_plain(exact, map.groups, kCheckEps);
  std::vector<at::Tensor> leaves = {exact.x, exact.weight, exact.bias};
  if (map.has_scale) leaves.push_back(exact.scale_shift);
  std::vector<at::Tensor> expected = torch::autograd::grad({y}, leaves, {dy.to(at::kFloat)});
  expected.push_back(y.detach());
  const auto given = map.has_scale ? std::optional(scale_shift) : std::nullopt;
  const auto [found, moments] =
      normalized(x, weight, bias, given, map.groups, kCheckEps, types.result);
  const auto [dx, dweight, dbias, dscale_shift] =
      group_norm_silu_backward_on_gpu(dy, x, moments, weight, bias, given, map.groups);
  std::vector<at::Tensor> ours = {dx, dweight, dbias};
  if (map.has_scale) ours.push_back(dscale_shift);
  ours.push_back(found);
  for (size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor rest = (ours[i].to(at::kFloat) - expected[i]).norm() / expected[i].norm();
    if (!(rest.item<double>() < limit)) return false;
  }
  return true;
}

}  // namespace

bool has_group_norm_silu_on_gpu(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  const bool has_type = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  if (!has_type || x.dim() != 4 || !x.is_contiguous() || x.numel() == 0 ||
      x.size(2) * x.size(3) > kMostPixels) {
    return false;
  }
  const KernelProgram program{"group_norm_silu", dtype, result_type(x)};
  return has_kernels(x.device(), program, "normalisation and activation", [&] {
    // Element by element; in packs; and several chunks of whole blocks, with more channels in a group than threads look at it.
    return agrees_with_plain(x.device(), {{2, 8, 3, 3}, 2, true}, program) &&
           agrees_with_plain(x.device(), {{2, 8, 8, 8}, 2, true}, program) &&
           agrees_with_plain(x.device(), {{1, 80, 131, 128}, 2, false}, program);
  });
}

std::tuple<at::Tensor, at::Tensor> group_norm_silu_on_gpu(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const std::optional<at::Tensor>& scale_shift,
    int64_t groups,
    double eps) {
  return normalized(x, weight, bias, scale_shift, groups, eps, result_type(x));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_norm_silu_backward_on_gpu(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& moments,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const std::optional<at::Tensor>& scale_shift,
    int64_t groups) {
  constexpr int64_t kThreadsOfChannels = 128;
  const AffineInputs affine(weight, bias, scale_shift);
  const at::Tensor grad = dy.contiguous();
  const at::Tensor dx = at::empty_like(x);
  const Maps maps(x, groups, is_aligned(x) && is_aligned(grad) && is_aligned(dx));
  const int64_t planes = maps.planes.grid[0];
  const at::Tensor parts = floats(x, {planes, maps.chunks(), 2});
  const at::Tensor dgain = floats(x, {planes}), doffset = floats(x, {planes});
  const at::Tensor losses = floats(x, {maps.groups, 2});
  const at::Tensor dweight = at::empty_like(affine.weight), dbias = at::empty_like(affine.bias);
  at::Tensor dscale_shift;
  if (affine.scale_shift.defined()) dscale_shift = at::empty_like(affine.scale_shift);
  const KernelProgram program = program_of(x, grad);
  launch_kernel(x.device(),
                program,
                maps.kernel("gradient_sums"),
                maps.planes,
                const_data(grad),
                const_data(x),
                const_data(moments),
                const_data(affine.weight),
                const_data(affine.bias),
                const_data(affine.scale_shift),
                data(parts),
                maps.channels,
                maps.members,
                maps.pixels,
                maps.packs,
                maps.packs_of_chunk);
  launch_kernel(x.device(),
                program,
                "group_gradients",
                {{maps.groups, 1}, kThreadsOfGroup},
                const_data(parts),
                const_data(moments),
                const_data(affine.weight),
                const_data(affine.bias),
                const_data(affine.scale_shift),
                data(dgain),
                data(doffset),
                data(losses),
                maps.channels,
                maps.members,
                maps.pixels,
                maps.chunks());
  launch_kernel(x.device(),
                program,
                maps.kernel("input_gradients"),
                maps.planes,
                const_data(grad),
                const_data(x),
                const_data(moments),
                const_data(losses),
                const_data(affine.weight),
                const_data(affine.bias),
                const_data(affine.scale_shift),
                data(dx),
                maps.channels,
                maps.members,
                maps.pixels,
                maps.packs,
                maps.packs_of_chunk);
  launch_kernel(
      x.device(),
      program,
      "affine_gradients",
      {{(maps.channels + kThreadsOfChannels - 1) / kThreadsOfChannels, 1}, kThreadsOfChannels},
      const_data(dgain),
      const_data(doffset),
      const_data(affine.weight),
      const_data(affine.bias),
      const_data(affine.scale_shift),
      data(dweight),
      data(dbias),
      data(dscale_shift),
      maps.batch,
      maps.channels);
  return {dx, dweight, dbias, dscale_shift};
}

}  // namespace dalle2
