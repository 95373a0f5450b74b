// SPDX-License-Identifier: MIT
#include "kernels/convolution.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/cpu_algorithms.h"
#include "kernels/half_weights.h"
#include "kernels/loops.h"
#include "kernels/winograd.h"

namespace dalle2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;  // undefined ones are no inputs of an operation

/// The largest map, of all samples together, whose unfolded copy is cheaper than what oneDNN does to the
/// weights: measured with 64 to 512 channels.
constexpr int64_t kUnfoldedPixels = 256;
/// The most maps of x for which rows of pixels are the better inner loops.
constexpr int64_t kWideMaps = 8;
/// The smallest kernel for which they are: LibTorch is faster up to 9x9, with AVX2 and with AVX-512.
constexpr int64_t kSmallestWideKernel = 11;

bool is_channels_last(const at::Tensor& x) {
  return x.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         (!x.is_contiguous() || x.size(2) * x.size(3) == 1);
}

/// Autocast does not reach what follows: the operands have its type already.
class WithoutAutocast {
 public:
  WithoutAutocast() = default;

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{
      c10::DispatchKeySet{c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA}};
};

template <class Work>
void with_unfold_loops(const at::Tensor& x, const Work& work) {
  const loops::Table& table = loops::best();
  if (x.scalar_type() == at::kFloat) {
    work(table.unfold_float, float{});
  } else {
    work(table.unfold_half, loops::Half{});
  }
}

constexpr int64_t kPixelGrain = 16;  // pixels

/// The square of pixels around each pixel of a channels-last map. [B H W, k k in]
at::Tensor unfolded(const at::Tensor& x, int64_t kernel) {
  const int64_t pixels = x.size(0) * x.size(2) * x.size(3);
  const loops::Patches patches{x.size(2), x.size(3), x.size(1), kernel};
  at::Tensor rows = at::cpu::empty({pixels, kernel * kernel * x.size(1)}, x.options());
  with_unfold_loops(x, [&](const auto& loop, auto element) {
    using T = decltype(element);
    const T* const from = static_cast<const T*>(x.const_data_ptr());
    T* const to = static_cast<T*>(rows.mutable_data_ptr());
    at::parallel_for(0, pixels, kPixelGrain, [&](int64_t begin, int64_t end) {
      loop.unfold(patches, begin, end, from, to);
    });
  });
  return rows;
}

/// Each pixel is the sum over the squares that it is in. @return as `like`
at::Tensor folded(const at::Tensor& rows, const at::Tensor& like, int64_t kernel) {
  const int64_t pixels = like.size(0) * like.size(2) * like.size(3);
  const loops::Patches patches{like.size(2), like.size(3), like.size(1), kernel};
  at::Tensor x = at::cpu::empty(like.sizes(), like.options(), at::MemoryFormat::ChannelsLast);
  with_unfold_loops(x, [&](const auto& loop, auto element) {
    using T = decltype(element);
    const T* const from = static_cast<const T*>(rows.const_data_ptr());
    T* const to = static_cast<T*>(x.mutable_data_ptr());
    at::parallel_for(0, pixels, kPixelGrain, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(static_cast<size_t>(patches.channels));
      loop.fold(patches, begin, end, from, to, scratch.data());
    });
  });
  return x;
}

at::Tensor channels_last(const at::Tensor& t) {
  return t.contiguous(at::MemoryFormat::ChannelsLast);
}

/// [out, in, k, k] -> [out, k k in]: a view where filters lie in that order.
at::Tensor matrix_of(const at::Tensor& weight) {
  const int64_t out = weight.size(0), row = weight.numel() / out;
  return at::cpu::as_strided(channels_last(weight), {out, row}, {row, 1});
}

bool needs_bias_grad(AutogradContext* context) {
  return context->saved_data["bias"].toBool() && context->needs_input_grad(2);
}

MaybeTensor if_any(const at::Tensor& t) {
  return t.defined() ? MaybeTensor(t) : std::nullopt;
}

/// The gradients by ATen's operation, which has gradients of its own.
variable_list plain_gradients(AutogradContext* context,
                              const at::Tensor& dy,
                              int64_t stride = 1,
                              bool transposed = false,
                              std::array<bool, 3> of = {true, true, true}) {
  const variable_list saved = context->get_saved_variables();
  const at::Tensor &x = saved[0],
                   weight = saved[1].to(x.scalar_type());  // tiles have wider weights
  const int64_t padding = (weight.size(2) - stride + 1) / 2;
  const std::array<bool, 3> wanted = {of[0] && context->needs_input_grad(0),
                                      of[1] && context->needs_input_grad(1),
                                      of[2] && needs_bias_grad(context)};
  auto [dx, dweight, dbias] = at::convolution_backward(dy,
                                                       x,
                                                       weight,
                                                       /*bias_sizes=*/at::IntArrayRef{dy.size(1)},
                                                       {stride, stride},
                                                       {padding, padding},
                                                       /*dilation=*/{1, 1},
                                                       transposed,
                                                       /*output_padding=*/{0, 0},
                                                       /*groups=*/1,
                                                       wanted);
  return {dx, dweight, dbias};
}

struct Unfolded : torch::autograd::Function<Unfolded> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const MaybeTensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    RECORD_USER_SCOPE_WITH_INPUTS("dalle2::unfolded_convolution",
                                  std::vector<c10::IValue>({x, weight}));
    const at::Tensor rows = unfolded(x, weight.size(2)), filters = turned(matrix_of(weight));
    return map_of_rows(bias ? at::addmm(*bias, rows, filters) : at::mm(rows, filters), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const WithoutAutocast without;
    if (at::GradMode::is_enabled()) return plain_gradients(context, grads[0]);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    RECORD_USER_SCOPE_WITH_INPUTS("dalle2::unfolded_convolution_backward",
                                  std::vector<c10::IValue>({x, weight}));
    const int64_t kernel = weight.size(2);
    const at::Tensor dy = rows_of_map(channels_last(grads[0]));
    variable_list found(3);
    if (context->needs_input_grad(0)) found[0] = folded(at::mm(dy, matrix_of(weight)), x, kernel);
    if (context->needs_input_grad(1)) {
      found[1] = map_of_rows(
          at::cpu::view(at::mm(turned(dy), unfolded(x, kernel)), {-1, weight.size(1)}), weight);
    }
    if (needs_bias_grad(context)) found[2] = dy.sum(0);
    return found;
  }
};

/// A convolution by tiles. `Algorithm` has the operation, its gradients at x and at the weight, its stride, and whether it is
/// transposed.
template <class Algorithm>
struct ByTiles : torch::autograd::Function<ByTiles<Algorithm>> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const MaybeTensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return Algorithm::convolution(
        x, channels_last(weight), bias ? bias->to(at::kFloat) : at::Tensor());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const WithoutAutocast without;
    if (at::GradMode::is_enabled()) {
      return plain_gradients(context, grads[0], Algorithm::kStride, Algorithm::kTransposed);
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const bool same_type = grads[0].scalar_type() == x.scalar_type();
    const at::Tensor dy = channels_last(same_type ? grads[0] : grads[0].to(x.scalar_type()));
    const at::Tensor filters = channels_last(weight);
    variable_list found(3);
    if (context->needs_input_grad(0)) found[0] = Algorithm::pixel_gradient(dy, filters);
    if (context->needs_input_grad(1)) found[1] = Algorithm::weight_gradient(x, dy, filters);
    if (needs_bias_grad(context)) found[2] = dy.sum({0, 2, 3}, /*keepdim=*/false, at::kFloat);
    return found;
  }
};

struct Winograd3x3 {
  static constexpr int64_t kStride = 1;
  static constexpr bool kTransposed = false;
  static constexpr auto convolution = &winograd_convolution;
  static constexpr auto pixel_gradient = &winograd_pixel_gradient;
  static constexpr auto weight_gradient = &winograd_weight_gradient;
};

/// Whether enough tiles share the weights of a 4x4 convolution with a stride of 2, or of its transpose, that tiles are
/// faster than LibTorch: measured in float32, with AVX2 and AVX-512. @param tiles of the smaller map
/// @param weight [out, in, 4, 4]
bool enough_tiles(int64_t tiles, const at::Tensor& weight, int64_t most_channels_per_tile) {
  return 4 * weight.size(1) + weight.size(0) <= most_channels_per_tile * tiles;
}

at::Tensor halved(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (enough_tiles(winograd_halving_tiles(x), weight, /*most_channels_per_tile=*/8)) {
    return winograd_halving(x, weight, bias);
  }
  const at::ScalarType dtype = x.scalar_type();
  return at::conv2d(x, weight.to(dtype), bias.defined() ? bias.to(dtype) : bias, 2, 1);
}

at::Tensor doubled(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (enough_tiles(winograd_tiles(x), weight, /*most_channels_per_tile=*/24)) {
    return winograd_doubling(x, weight, bias);
  }
  const at::ScalarType dtype = x.scalar_type();
  return at::conv_transpose2d(x, weight.to(dtype), bias.defined() ? bias.to(dtype) : bias, 2, 1);
}

struct Halving {
  static constexpr int64_t kStride = 2;
  static constexpr bool kTransposed = false;
  static constexpr auto convolution = &halved;
  static constexpr auto weight_gradient = &winograd_halving_weight_gradient;
  static at::Tensor pixel_gradient(const at::Tensor& dy, const at::Tensor& weight) {
    return doubled(dy, weight, {});
  }
};

/// The transpose of Halving.
struct Doubling {
  static constexpr int64_t kStride = 2;
  static constexpr bool kTransposed = true;
  static constexpr auto convolution = &doubled;
  static at::Tensor pixel_gradient(const at::Tensor& dy, const at::Tensor& weight) {
    return halved(dy, weight, {});
  }
  static at::Tensor weight_gradient(const at::Tensor& x,
                                    const at::Tensor& dy,
                                    const at::Tensor& weight) {
    return winograd_halving_weight_gradient(dy, x, weight);
  }
};

/// What a wide convolution reads and writes, in padded rows.
class WideMaps {
 public:
  WideMaps(const at::Tensor& x, int64_t out, int64_t kernel)
      : batch_(x.size(0)), height_(x.size(2)), kernel_(kernel) {
    const int64_t in = x.size(1), width = x.size(3),
                  stride = width + kernel - 1 + loops::kWideSlack;
    const int64_t padding = kernel / 2, rows = height_ + kernel - 1;
    shape_ = {.in = in,
              .out = (out + loops::kWideOut - 1) / loops::kWideOut * loops::kWideOut,
              .width = width,
              .kernel = kernel,
              .plane = rows * stride,
              .stride = stride,
              .out_stride = width + loops::kWideSlack};
    // One row more for the tile that reads beyond the last.
    x_ = at::zeros({batch_ * in * rows + 1, stride}, x.options());
    x_.narrow(0, 0, batch_ * in * rows)
        .view({batch_, in, rows, stride})
        .narrow(2, padding, height_)
        .narrow(3, padding, width)
        .copy_(x);
  }

  /// [B, H, out, width] in rows that are padded too; with zeros
  at::Tensor rows() const {
    return at::zeros({batch_ * height_ * shape_.out, shape_.out_stride}, x_.options());
  }
  at::Tensor map_of(const at::Tensor& rows, int64_t out) const {  // [B, out, H, W], a view
    return rows.view({batch_, height_, shape_.out, shape_.out_stride})
        .narrow(2, 0, out)
        .narrow(3, 0, shape_.width)
        .permute({0, 2, 1, 3});
  }

  at::Tensor forward(const at::Tensor& weight, const at::Tensor& bias) const {
    const int64_t out = weight.size(0);
    at::Tensor padded = at::zeros({shape_.out, shape_.in, kernel_, kernel_}, weight.options());
    padded.narrow(0, 0, out).copy_(weight);
    const at::Tensor filters = padded.view({-1, loops::kWideOut, shape_.in, kernel_, kernel_})
                                   .permute({0, 2, 3, 4, 1})
                                   .contiguous();
    at::Tensor offset = at::zeros({shape_.out}, weight.options());
    if (bias.defined()) offset.narrow(0, 0, out).copy_(bias);
    at::Tensor y = rows();
    const float* const from = x_.const_data_ptr<float>();
    const float* const with = filters.const_data_ptr<float>();
    const float* const add = offset.const_data_ptr<float>();
    float* const to = y.mutable_data_ptr<float>();
    at::parallel_for(0, batch_ * height_, 4, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sample = row / height_, own = row % height_;
        loops::best().wide_convolution.forward(
            shape_,
            from + sample * shape_.in * shape_.plane + own * shape_.stride,
            with,
            add,
            to + row * shape_.out * shape_.out_stride);
      }
    });
    return map_of(y, out).contiguous();
  }

  /// Each map of x has sums of its own, in one order whatever the number of threads.
  at::Tensor weight_gradient(const at::Tensor& dy) const {
    constexpr int64_t kRows = 4;  // that stay in the nearest cache
    const int64_t out = dy.size(1);
    const at::Tensor padded = rows();
    map_of(padded, out).copy_(dy);
    const auto& loop = loops::best().wide_convolution;
    const float* const from = x_.const_data_ptr<float>();
    const float* const from_dy = padded.const_data_ptr<float>();
    at::Tensor all =
        at::zeros({shape_.in, shape_.out, kernel_, kernel_}, x_.options().dtype(at::kDouble));
    double* const to = all.mutable_data_ptr<double>();
    at::parallel_for(0, shape_.in, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> sums(static_cast<size_t>(loop.sums(shape_)));
      for (int64_t in = begin; in < end; ++in) {
        for (int64_t sample = 0; sample < batch_; ++sample) {
          std::ranges::fill(sums, 0.0f);
          for (int64_t row = 0; row < height_; row += kRows) {
            loop.weight_gradient(
                shape_,
                std::min(kRows, height_ - row),
                from + (sample * shape_.in + in) * shape_.plane + row * shape_.stride,
                from_dy + (sample * height_ + row) * shape_.out * shape_.out_stride,
                sums.data());
          }
          loop.weights_of(shape_, sums.data(), to + in * shape_.out * kernel_ * kernel_);
        }
      }
    });
    return all.narrow(1, 0, out).transpose(0, 1).to(
        at::kFloat, false, false, at::MemoryFormat::Contiguous);
  }

 private:
  int64_t batch_, height_, kernel_;
  loops::WideShape shape_{};
  at::Tensor x_;
};

struct Wide : torch::autograd::Function<Wide> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const MaybeTensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    RECORD_USER_SCOPE_WITH_INPUTS("dalle2::wide_convolution",
                                  std::vector<c10::IValue>({x, weight}));
    return WideMaps(x, weight.size(0), weight.size(2)).forward(weight, bias.value_or(at::Tensor()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) return plain_gradients(context, grads[0]);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    variable_list found(3);
    if (context->needs_input_grad(0)) {
      found = plain_gradients(
          context, dy, /*stride=*/1, /*transposed=*/false, /*of=*/{true, false, false});
    }
    if (context->needs_input_grad(1)) {
      RECORD_USER_SCOPE_WITH_INPUTS("dalle2::wide_weight_gradient",
                                    std::vector<c10::IValue>({x, weight}));
      found[1] = WideMaps(x, weight.size(0), weight.size(2)).weight_gradient(dy);
    }
    if (needs_bias_grad(context)) found[2] = dy.sum({0, 2, 3});
    return found;
  }
};

bool computes_in_float(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && !at::autocast::is_autocast_enabled(at::kCPU);
}

/// Under autocast, maps are bfloat16. Tiles of them compute in float32, with a quarter of the products: faster than
/// LibTorch's bfloat16, unless the processor has AMX.
bool computes_in_half_tiles(const at::Tensor& x) {
  static const bool has_amx = cpu_has("amx_bf16");
  return !has_amx && at::autocast::is_autocast_enabled(at::kCPU) &&
         at::autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16 &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

bool has_tiles_of_channels(const at::Tensor& weight, int64_t tiles) {
  return weight.scalar_type() == at::kFloat && weight.size(0) % loops::kTileChannels == 0 &&
         weight.size(1) % loops::kTileChannels == 0 &&
         tiles >= loops::best().fast_shapes.fewest_tiles;
}

/// The transform of the weights, 36 numbers of 9, pays if enough tiles use them.
bool fits_winograd(const at::Tensor& x, const at::Tensor& weight) {
  constexpr int64_t kMostInHalf = 16;  // channels per tile, where LibTorch multiplies in bfloat16
  const loops::FastShapes& fast = loops::best().fast_shapes;
  const int64_t channels = weight.size(0) + weight.size(1), tiles = winograd_tiles(x);
  if (weight.size(2) != 3 || !has_tiles_of_channels(weight, tiles)) return false;
  if (computes_in_float(x)) return tiles * fast.channels_per_tile >= channels;
  return computes_in_half_tiles(x) &&
         tiles * std::min(fast.channels_per_tile, kMostInHalf) >= channels;
}

bool is_known(const at::Tensor& x, const at::Tensor& weight) {
  return uses_cpu_algorithms(x.device()) && x.dim() == 4 && weight.dim() == 4 && x.numel() > 0 &&
         weight.size(2) == weight.size(3) &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

/// Tiles save fewer products here than in 3x3 convolutions: in bfloat16, they are faster only where the processor has no
/// instructions for it. @param tiles of the smaller map
bool fits_halving(
    const at::Tensor& x, const at::Tensor& weight, int64_t tiles, int64_t stride, int64_t padding) {
  static const bool has_bf16 = cpu_has("avx512_bf16");
  return stride == 2 && padding == 1 && weight.size(2) == 4 && is_channels_last(x) &&
         has_tiles_of_channels(weight, tiles) &&
         (computes_in_float(x) || (!has_bf16 && computes_in_half_tiles(x)));
}

bool fits_wide(const at::Tensor& x, const at::Tensor& weight) {
  return computes_in_float(x) && weight.scalar_type() == at::kFloat &&
         weight.size(2) >= kSmallestWideKernel && x.size(1) <= kWideMaps && x.size(3) >= 32 &&
         x.size(2) >= weight.size(2);
}

/// Casts of leaves are made once a step: autocast keeps them.
ConvolutionInputs in_autocast_type(const ConvolutionInputs& inputs) {
  if (!at::autocast::is_autocast_enabled(at::kCPU)) return inputs;
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  const auto cast = [&](const at::Tensor& t) {
    return t.defined() ? at::autocast::cached_cast(dtype, t, at::kCPU) : t;
  };
  return {cast(inputs.x), cast(inputs.weight), cast(inputs.bias)};
}

}  // namespace

ConvolutionAlgorithm algorithm_for(const ConvolutionInputs& inputs,
                                   int64_t stride,
                                   int64_t padding) {
  const at::Tensor &x = inputs.x, &weight = inputs.weight;
  if (!is_known(x, weight) || x.size(1) != weight.size(1)) return ConvolutionAlgorithm::kPlain;
  if (x.size(2) % 2 == 0 && x.size(3) % 2 == 0 &&
      fits_halving(x, weight, winograd_halving_tiles(x), stride, padding)) {
    return ConvolutionAlgorithm::kHalving;
  }
  if (stride != 1 || weight.size(2) % 2 == 0 || padding != weight.size(2) / 2)
    return ConvolutionAlgorithm::kPlain;
  if (is_channels_last(x)) {
    if (weight.size(2) == 1) return ConvolutionAlgorithm::kTokens;
    if (fits_winograd(x, weight)) return ConvolutionAlgorithm::kWinograd;
    const bool small = x.size(0) * x.size(2) * x.size(3) <= kUnfoldedPixels;
    return small && x.size(1) >= kWideMaps ? ConvolutionAlgorithm::kUnfolded
                                           : ConvolutionAlgorithm::kPlain;
  }
  return fits_wide(x, weight) ? ConvolutionAlgorithm::kWide : ConvolutionAlgorithm::kPlain;
}

namespace {

template <class Algorithm>
at::Tensor by_tiles(const ConvolutionInputs& inputs) {
  const at::Tensor maps = in_autocast_type({inputs.x, {}, {}}).x;
  const WithoutAutocast without;
  return ByTiles<Algorithm>::apply(maps, inputs.weight, if_any(inputs.bias));
}

at::Tensor convolution_of_script(const at::Tensor& x,
                                 const at::Tensor& weight,
                                 const MaybeTensor& bias,
                                 int64_t stride,
                                 int64_t padding) {
  return convolution({x, weight, bias.value_or(at::Tensor())}, stride, padding);
}

}  // namespace

/// For TorchScript: metrics/script/script_convolutions.h.
TORCH_LIBRARY_FRAGMENT(dalle2, m) {
  m.def("convolution(Tensor x, Tensor weight, Tensor? bias, int stride, int padding) -> Tensor",
        &convolution_of_script);
}

bool belongs_channels_last(const at::Tensor& weight) {
  constexpr int64_t kLargest = 4, kFewest = 8;
  return weight.dim() == 4 && uses_cpu_algorithms(weight.device()) && weight.size(1) >= kFewest &&
         weight.size(2) > 1 && weight.size(2) <= kLargest && weight.size(2) == weight.size(3);
}

at::Tensor convolution(const ConvolutionInputs& inputs, int64_t stride, int64_t padding) {
  const auto& [x, weight, bias] = inputs;
  switch (algorithm_for(inputs, stride, padding)) {
    case ConvolutionAlgorithm::kTokens: {
      const ConvolutionInputs cast = in_autocast_type({x, in_half(weight), in_half(bias)});
      const WithoutAutocast without;
      const at::Tensor tokens = cast.x.permute({0, 2, 3, 1});  // [B, H, W, in], contiguous
      return at::linear(tokens, cast.weight.flatten(1), cast.bias).permute({0, 3, 1, 2});
    }
    case ConvolutionAlgorithm::kUnfolded: {
      const ConvolutionInputs cast = in_autocast_type({x, in_half(weight), in_half(bias)});
      const at::ScalarType dtype = cast.x.scalar_type();
      const bool has_loops = dtype == at::kFloat || dtype == at::kBFloat16;
      if (!has_loops || cast.weight.scalar_type() != dtype) break;
      const WithoutAutocast without;
      return Unfolded::apply(cast.x, cast.weight, if_any(cast.bias));
    }
    case ConvolutionAlgorithm::kWinograd:
      return by_tiles<Winograd3x3>(inputs);
    case ConvolutionAlgorithm::kHalving:
      return by_tiles<Halving>(inputs);
    case ConvolutionAlgorithm::kWide:
      return Wide::apply(x.contiguous(), weight.contiguous(), if_any(bias));
    case ConvolutionAlgorithm::kPlain:
      break;
  }
  return at::conv2d(x, in_half(weight), in_half(bias), stride, padding);
}

ConvolutionAlgorithm transposed_algorithm_for(const ConvolutionInputs& inputs,
                                              int64_t stride,
                                              int64_t padding) {
  const at::Tensor &x = inputs.x, &weight = inputs.weight;
  const bool by_tiles = is_known(x, weight) && x.size(1) == weight.size(0) &&
                        fits_halving(x, weight, winograd_tiles(x), stride, padding);
  return by_tiles ? ConvolutionAlgorithm::kHalving : ConvolutionAlgorithm::kPlain;
}

at::Tensor transposed_convolution(const ConvolutionInputs& inputs,
                                  int64_t stride,
                                  int64_t padding) {
  if (transposed_algorithm_for(inputs, stride, padding) == ConvolutionAlgorithm::kHalving) {
    return by_tiles<Doubling>(inputs);
  }
  return at::conv_transpose2d(inputs.x, inputs.weight, inputs.bias, stride, padding);
}

}  // namespace dalle2
