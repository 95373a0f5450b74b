// SPDX-License-Identifier: MIT
#include "kernels/gpu/group_norm_silu_on_gpu.h"

#include <torch/torch.h>

#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
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

KernelProgram program_of(const at::Tensor& x) {
  return {"group_norm_silu", x.scalar_type()};
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

/// Whether the kernels give what ATen's operations do, on two small maps.
bool agrees_with_plain(const at::Device& device, at::ScalarType dtype) {
  constexpr int64_t kGroups = 2;
  constexpr double kCheckEps = 1e-5;
  const double limit = dtype == at::kFloat ? 1e-4 : 2e-2;  // of the norm of the difference
  const auto wave = [&](at::IntArrayRef sizes, double step) {
    const int64_t count = c10::multiply_integers(sizes);
    return (at::arange(count, at::kFloat) * step).sin().view(sizes).to(device);
  };
  for (const int64_t side : {3, 8}) {
    const at::Tensor x = (wave({2, 8, side, side}, 1.3) + 2).to(dtype);
    const at::Tensor dy = wave(x.sizes(), 0.7).to(dtype);
    const at::Tensor weight = wave({8}, 0.9) + 1, bias = wave({8}, 0.5);
    const at::Tensor scale_shift = wave({2, 16}, 1.1);
    const auto leaf = [](const at::Tensor& tensor) {
      return tensor.to(at::kFloat).clone().set_requires_grad(true);
    };
    const GroupNormSiluInputs exact{leaf(x), leaf(weight), leaf(bias), leaf(scale_shift)};
    const at::Tensor y = group_norm_silu_plain(exact, kGroups, kCheckEps);
    std::vector<at::Tensor> expected = torch::autograd::grad(
        {y}, {exact.x, exact.weight, exact.bias, exact.scale_shift}, {dy.to(at::kFloat)});
    expected.push_back(y.detach());
    const auto [found, moments] =
        group_norm_silu_on_gpu(x, weight, bias, scale_shift, kGroups, kCheckEps);
    const auto [dx, dweight, dbias, dscale_shift] =
        group_norm_silu_backward_on_gpu(dy, x, moments, weight, bias, scale_shift, kGroups);
    const std::vector<at::Tensor> ours = {dx, dweight, dbias, dscale_shift, found};
    for (size_t i = 0; i < ours.size(); ++i) {
      const at::Tensor rest = (ours[i].to(at::kFloat) - expected[i]).norm() / expected[i].norm();
      if (!(rest.item<double>() < limit)) return false;
    }
  }
  return true;
}

/// Of a device's type and the maps', looked at once a process.
bool can_be_used(const at::Device& device, at::ScalarType dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<KernelLauncher*, at::ScalarType>, bool> known;
  KernelLauncher* const launcher = kernel_launcher(device.type());
  if (launcher == nullptr) return false;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({launcher, dtype}, false);
  if (!is_new) return found->second;
  std::string fault = "its results differ from those of LibTorch's operations";
  try {
    const c10::InferenceMode inference(false);  // the pass that asks may be one without gradients
    const at::AutoGradMode with_grad(true);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    found->second = agrees_with_plain(device, dtype);
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (!found->second) {
    log_warning("train",
                "the kernel of normalisation and activation is not used for {}: {}\n  Steps take "
                "LibTorch's operations instead, which take longer.",
                c10::toString(dtype),
                fault);
  }
  return found->second;
}

}  // namespace

bool has_group_norm_silu_on_gpu(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  const bool has_type = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  constexpr int64_t kMostPixels = int64_t{1} << 30;
  return has_type && x.dim() == 4 && x.is_contiguous() && x.numel() > 0 &&
         x.size(2) * x.size(3) <= kMostPixels && can_be_used(x.device(), dtype);
}

std::tuple<at::Tensor, at::Tensor> group_norm_silu_on_gpu(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const std::optional<at::Tensor>& scale_shift,
    int64_t groups,
    double eps) {
  const AffineInputs affine(weight, bias, scale_shift);
  const at::Tensor y = at::empty_like(x);
  const Maps maps(x, groups, is_aligned(x) && is_aligned(y));
  const at::Tensor parts = floats(x, {maps.planes.grid[0], maps.chunks(), 2});
  const at::Tensor moments = floats(x, {maps.groups, 2});
  launch_kernel(x.device(),
                program_of(x),
                maps.kernel("plane_sums"),
                maps.planes,
                const_data(x),
                data(parts),
                maps.pixels,
                maps.packs,
                maps.packs_of_chunk);
  launch_kernel(x.device(),
                program_of(x),
                "group_moments",
                {{maps.groups, 1}, kThreadsOfGroup},
                const_data(x),
                const_data(parts),
                data(moments),
                maps.members,
                maps.pixels,
                maps.chunks(),
                static_cast<float>(eps));
  launch_kernel(x.device(),
                program_of(x),
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
  const at::Tensor grad = dy.to(x.scalar_type()).contiguous();
  const at::Tensor dx = at::empty_like(x);
  const Maps maps(x, groups, is_aligned(x) && is_aligned(grad) && is_aligned(dx));
  const int64_t planes = maps.planes.grid[0];
  const at::Tensor parts = floats(x, {planes, maps.chunks(), 2});
  const at::Tensor dgain = floats(x, {planes}), doffset = floats(x, {planes});
  const at::Tensor losses = floats(x, {maps.groups, 2});
  const at::Tensor dweight = at::empty_like(affine.weight), dbias = at::empty_like(affine.bias);
  at::Tensor dscale_shift;
  if (affine.scale_shift.defined()) dscale_shift = at::empty_like(affine.scale_shift);
  launch_kernel(x.device(),
                program_of(x),
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
                program_of(x),
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
                program_of(x),
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
      program_of(x),
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
