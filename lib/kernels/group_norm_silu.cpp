// SPDX-License-Identifier: MIT
#include "kernels/group_norm_silu.h"

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/cpu_algorithms.h"
#include "kernels/loops.h"

namespace dalle2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;
using Forward = std::tuple<at::Tensor, at::Tensor>;  // y, and mean and rstd of each group
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// The least number of values that a thread takes.
constexpr int64_t kGrain = 16384;

/// Of that type, without a call of the dispatcher where it is already.
at::Tensor as_type(const at::Tensor& t, at::ScalarType dtype) {
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

/// (w n + b) (scale + 1) + shift = n gain + offset. All float32.
struct Affine {
  at::Tensor weight, bias;                 // [C]
  at::Tensor scale_shift;                  // [B, 2 C], whose rows may lie apart, or undefined
  std::vector<float> scale, gain, offset;  // [B, C]; scale has the 1

  Affine(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, const OptionalTensor& given)
      : weight(as_type(w, at::kFloat).contiguous()), bias(as_type(b, at::kFloat).contiguous()) {
    const int64_t batch = x.size(0), channels = x.size(1);
    if (given && given->defined()) scale_shift = as_type(*given, at::kFloat);
    if (scale_shift.defined() && scale_shift.stride(1) != 1) scale_shift = scale_shift.contiguous();
    const int64_t row_stride = scale_shift.defined() ? scale_shift.stride(0) : 0;
    const auto count = static_cast<size_t>(batch * channels);
    scale.assign(count, 1.0f);
    gain.resize(count);
    offset.resize(count);
    const float* const w_of = weight.const_data_ptr<float>();
    const float* const b_of = bias.const_data_ptr<float>();
    const float* row = scale_shift.defined() ? scale_shift.const_data_ptr<float>() : nullptr;
    for (size_t at = 0; at < count; ++at) {
      const auto c = static_cast<int64_t>(at) % channels;
      if (row != nullptr && c == 0 && at > 0) row += row_stride;
      if (row != nullptr) scale[at] += row[c];
      gain[at] = scale[at] * w_of[c];
      offset[at] = scale[at] * b_of[c] + (row != nullptr ? row[channels + c] : 0.0f);
    }
  }
};

template <class Work>
void with_element_type(const at::Tensor& x, const Work& work) {
  const loops::Table& table = loops::best();
  if (x.scalar_type() == at::kFloat) {
    work(table.rows_norm_float, float{});
  } else {
    work(table.rows_norm_half, loops::Half{});
  }
}

bool is_channels_last_map(const at::Tensor& x) {
  return x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

/// In the order that the loops read.
at::Tensor in_rows(const at::Tensor& x) {
  return x.contiguous(at::MemoryFormat::ChannelsLast);
}

/// A channels-last map, in chunks of pixels that do not depend on the number of threads.
/// Sums of a chunk are float32, those of the chunks float64.
class RowsMap {
 public:
  explicit RowsMap(const at::Tensor& x)
      : batch(x.size(0)), channels(x.size(1)), pixels(x.size(2) * x.size(3)) {
    constexpr int64_t kChunk = 16384, kShortest = 64;  // elements
    chunk_ = std::min(pixels, std::max<int64_t>(8, kChunk / channels / 8 * 8));
    chunks = (pixels + chunk_ - 1) / chunk_;
    const int64_t last = pixels - (chunks - 1) * chunk_;
    while (channels * repeats_ < kShortest && chunk_ % (2 * repeats_) == 0 &&
           last % (2 * repeats_) == 0) {
      repeats_ *= 2;
    }
    width = channels * repeats_;
  }

  int64_t batch, channels, pixels;
  int64_t chunks = 1;  ///< of a sample
  int64_t width = 0;   ///< of a row: a multiple of the channels

  /// Calls `work(sample, number of all chunks, first element, rows)` on several threads.
  template <class Work>
  void each_chunk(const Work& work) const {
    const int64_t grain = std::max<int64_t>(1, kGrain / (chunk_ * channels));
    at::parallel_for(0, batch * chunks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t number = begin; number < end; ++number) {
        const int64_t sample = number / chunks, pixel = number % chunks * chunk_;
        const int64_t count = std::min(chunk_, pixels - pixel);
        work(sample,
             number,
             (sample * pixels + pixel) * channels,
             loops::Rows{count / repeats_, width});
      }
    });
  }

  /// One number a column of each sample, from one a channel: [B, width].
  std::vector<float> columns() const {
    return std::vector<float>(static_cast<size_t>(batch * width));
  }
  void put(std::vector<float>& columns, int64_t sample, int64_t c, float value) const {
    for (int64_t i = 0; i < repeats_; ++i) {
      columns[static_cast<size_t>(sample * width + i * channels + c)] = value;
    }
  }
  /// The sum of a sample's chunks and columns of a channel. @param parts [B chunks, 2, width]
  double sum(const std::vector<float>& parts, int64_t sample, int64_t which, int64_t c) const {
    double all = 0;
    for (int64_t chunk = sample * chunks; chunk < (sample + 1) * chunks; ++chunk) {
      const float* const part = parts.data() + (2 * chunk + which) * width;
      for (int64_t i = 0; i < repeats_; ++i) all += static_cast<double>(part[i * channels + c]);
    }
    return all;
  }
  std::vector<float> parts() const {
    return std::vector<float>(static_cast<size_t>(batch * chunks * 2 * width));
  }

 private:
  int64_t chunk_;  // pixels
  int64_t repeats_ = 1;
};

float value_of(float value) {
  return value;
}
float value_of(loops::Half value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

template <class T>
const T* data_of(const at::Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

void check(const at::Tensor& x,
           const at::Tensor& weight,
           const at::Tensor& bias,
           const OptionalTensor& scale_shift,
           int64_t groups) {
  TORCH_CHECK(
      x.dim() == 4 && (x.is_contiguous() || is_channels_last_map(x)) && x.size(1) % groups == 0 &&
          (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16),
      "group_norm_silu: a map [B, C, H, W], contiguous in either order, of float32 or bfloat16, C a multiple of ",
      groups);
  // The loops read by index: what would broadcast has no place here.
  const bool has_scale = scale_shift && scale_shift->defined();
  TORCH_CHECK(weight.numel() == x.size(1) && bias.numel() == x.size(1) &&
                  (!has_scale || (scale_shift->dim() == 2 && scale_shift->size(0) == x.size(0) &&
                                  scale_shift->size(1) == 2 * x.size(1))),
              "group_norm_silu: weight and bias [C], scale and shift [B, 2 C], for ",
              x.sizes());
}

/// Mean and 1 / deviation of each group, [B groups, 2], of the sums of x - center by channel.
void moments_of_rows(const RowsMap& map,
                     const std::vector<float>& parts,
                     const std::vector<float>& centers,
                     int64_t groups,
                     double eps,
                     float* found) {
  const int64_t members = map.channels / groups;
  const auto pixels = static_cast<double>(map.pixels);
  std::vector<double> means(static_cast<size_t>(members));
  for (int64_t number = 0; number < map.batch * groups; ++number) {
    const int64_t sample = number / groups, first = number % groups * members;
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < members; ++i) {
      const double shift = map.sum(parts, sample, 0, first + i) / pixels;
      const double center = centers[static_cast<size_t>(sample * map.width + first + i)];
      squares += map.sum(parts, sample, 1, first + i) - shift * shift * pixels;
      means[static_cast<size_t>(i)] = center + shift;
      mean += (center + shift) / static_cast<double>(members);
    }
    for (const double own : means) squares += pixels * (own - mean) * (own - mean);
    const double variance = squares / (pixels * static_cast<double>(members));
    found[2 * number] = static_cast<float>(mean);
    found[2 * number + 1] = static_cast<float>(1.0 / std::sqrt(variance + eps));
  }
}

/// Center, factor and shift of z = (x - mean) rstd gain + offset by column.
struct NormColumns {
  std::vector<float> center, factor, shift;

  NormColumns(const RowsMap& map, const Affine& affine, int64_t groups, const float* moments)
      : center(map.columns()), factor(center), shift(center) {
    const int64_t members = map.channels / groups;
    for (int64_t sample = 0; sample < map.batch; ++sample) {
      for (int64_t c = 0; c < map.channels; ++c) {
        const float* const found = moments + 2 * (sample * groups + c / members);
        const auto at = static_cast<size_t>(sample * map.channels + c);
        map.put(center, sample, c, found[0]);
        map.put(factor, sample, c, found[1] * affine.gain[at]);
        map.put(shift, sample, c, affine.offset[at]);
      }
    }
  }

  loops::Columns of(const RowsMap& map, int64_t sample) const {
    const int64_t at = sample * map.width;
    return {center.data() + at, factor.data() + at, shift.data() + at};
  }
};

void forward_of_rows(const at::Tensor& x,
                     const Affine& affine,
                     int64_t groups,
                     double eps,
                     bool silu,
                     at::Tensor& y,
                     float* moments) {
  const RowsMap map(x);
  with_element_type(x, [&](const auto& loop, auto element) {
    using T = decltype(element);
    const T* const from = data_of<T>(x);
    T* const to = static_cast<T*>(y.mutable_data_ptr());
    // Sums about the first pixel: about zero they would lose the digits of a mean far from it.
    std::vector<float> centers = map.columns(), parts = map.parts();
    for (int64_t sample = 0; sample < map.batch; ++sample) {
      for (int64_t c = 0; c < map.channels; ++c) {
        map.put(centers, sample, c, value_of(from[sample * map.pixels * map.channels + c]));
      }
    }
    map.each_chunk([&](int64_t sample, int64_t number, int64_t at, const loops::Rows& rows) {
      float* const part = parts.data() + 2 * number * map.width;
      loop.sums(rows, from + at, centers.data() + sample * map.width, part, part + map.width);
    });
    moments_of_rows(map, parts, centers, groups, eps, moments);
    const NormColumns columns(map, affine, groups, moments);
    map.each_chunk([&](int64_t sample, int64_t, int64_t at, const loops::Rows& rows) {
      loop.forward(rows, columns.of(map, sample), silu, from + at, to + at);
    });
  });
}

/// dx, and the gradients of gain and offset. With N elements in a group and n = (x - mean) rstd,
/// dx = rstd (gain dz - sum(gain dz) / N - n sum(gain dz n) / N).
void backward_of_rows(const at::Tensor& grad,
                      const at::Tensor& x,
                      const Affine& affine,
                      int64_t groups,
                      const float* moments,
                      bool silu,
                      at::Tensor& dx,
                      std::vector<float>& dgain,
                      std::vector<float>& doffset) {
  const RowsMap map(x);
  const int64_t members = map.channels / groups;
  const auto count = static_cast<double>(map.pixels * members);
  with_element_type(x, [&](const auto& loop, auto element) {
    using T = decltype(element);
    const T* const from = data_of<T>(x);
    const T* const from_grad = data_of<T>(grad);
    T* const to = static_cast<T*>(dx.mutable_data_ptr());
    // dx itself holds dz where it has its digits.
    at::Tensor dz = dx;
    if (x.scalar_type() != at::kFloat)
      dz = at::cpu::empty({x.numel()}, x.options().dtype(at::kFloat));
    float* const to_dz = static_cast<float*>(dz.mutable_data_ptr());
    NormColumns columns(map, affine, groups, moments);
    std::vector<float> parts = map.parts();
    map.each_chunk([&](int64_t sample, int64_t number, int64_t at, const loops::Rows& rows) {
      float* const part = parts.data() + 2 * number * map.width;
      loop.backward_sums(rows,
                         columns.of(map, sample),
                         silu,
                         from_grad + at,
                         from + at,
                         to_dz + at,
                         part,
                         part + map.width);
    });
    std::vector<float> slope = map.columns();
    for (int64_t number = 0; number < map.batch * groups; ++number) {
      const int64_t sample = number / groups, first = number % groups * members;
      const auto rstd = static_cast<double>(moments[2 * number + 1]);
      double sum = 0, product = 0;
      for (int64_t c = first; c < first + members; ++c) {
        const auto at = static_cast<size_t>(sample * map.channels + c);
        const double of_dz = map.sum(parts, sample, 0, c);
        const double of_product = map.sum(parts, sample, 1, c) * rstd;
        doffset[at] = static_cast<float>(of_dz);
        dgain[at] = static_cast<float>(of_product);
        sum += of_dz * static_cast<double>(affine.gain[at]);
        product += of_product * static_cast<double>(affine.gain[at]);
      }
      for (int64_t c = first; c < first + members; ++c) {
        map.put(slope, sample, c, static_cast<float>(product / count * rstd * rstd));
        map.put(columns.shift, sample, c, static_cast<float>(sum / count * rstd));
      }
    }
    map.each_chunk([&](int64_t sample, int64_t, int64_t at, const loops::Rows& rows) {
      loop.backward(rows,
                    columns.of(map, sample),
                    slope.data() + sample * map.width,
                    to_dz + at,
                    from + at,
                    to + at);
    });
  });
}

Forward norm_on_cpu(const at::Tensor& x,
                    const at::Tensor& weight,
                    const at::Tensor& bias,
                    const OptionalTensor& scale_shift,
                    int64_t groups,
                    double eps,
                    bool silu) {
  check(x, weight, bias, scale_shift, groups);
  const at::Tensor rows = in_rows(x);
  at::Tensor y = at::cpu::empty(rows.sizes(), rows.options(), at::MemoryFormat::ChannelsLast);
  at::Tensor moments = at::cpu::empty({x.size(0) * groups, 2}, x.options().dtype(at::kFloat));
  forward_of_rows(rows,
                  Affine(x, weight, bias, scale_shift),
                  groups,
                  eps,
                  silu,
                  y,
                  moments.mutable_data_ptr<float>());
  return {y.contiguous(x.suggest_memory_format()), moments};
}

Forward forward_on_cpu(const at::Tensor& x,
                       const at::Tensor& weight,
                       const at::Tensor& bias,
                       const OptionalTensor& scale_shift,
                       int64_t groups,
                       double eps) {
  return norm_on_cpu(x, weight, bias, scale_shift, groups, eps, /*silu=*/true);
}

/// From the gradients of gain and offset, [B, C], those of what they are made of.
Backward affine_gradients(const Affine& affine,
                          const at::Tensor& dx,
                          const std::vector<float>& dgain,
                          const std::vector<float>& doffset) {
  const int64_t batch = dx.size(0), channels = dx.size(1);
  const at::TensorOptions options = affine.weight.options();
  const at::Tensor dweight = at::cpu::empty({channels}, options),
                   dbias = at::cpu::empty({channels}, options);
  float* const to_weight = dweight.mutable_data_ptr<float>();
  float* const to_bias = dbias.mutable_data_ptr<float>();
  std::fill_n(to_weight, channels, 0.0f);
  std::fill_n(to_bias, channels, 0.0f);
  const float* const weight = affine.weight.const_data_ptr<float>();
  const float* const bias = affine.bias.const_data_ptr<float>();
  at::Tensor dscale_shift;
  if (affine.scale_shift.defined()) dscale_shift = at::cpu::empty({batch, 2 * channels}, options);
  float* const to_rows = dscale_shift.defined() ? dscale_shift.mutable_data_ptr<float>() : nullptr;
  for (int64_t sample = 0; sample < batch; ++sample) {
    for (int64_t c = 0; c < channels; ++c) {
      const auto at = static_cast<size_t>(sample * channels + c);
      to_weight[c] += dgain[at] * affine.scale[at];
      to_bias[c] += doffset[at] * affine.scale[at];
      if (to_rows == nullptr) continue;
      float* const row = to_rows + 2 * sample * channels;
      row[c] = dgain[at] * weight[c] + doffset[at] * bias[c];
      row[channels + c] = doffset[at];
    }
  }
  return {dx, dweight, dbias, dscale_shift};
}

Backward norm_backward_on_cpu(const at::Tensor& dy,
                              const at::Tensor& x,
                              const at::Tensor& moments,
                              const at::Tensor& weight,
                              const at::Tensor& bias,
                              const OptionalTensor& scale_shift,
                              int64_t groups,
                              bool silu) {
  check(x, weight, bias, scale_shift, groups);
  const Affine affine(x, weight, bias, scale_shift);
  const at::Tensor rows = in_rows(x);
  at::Tensor dx = at::cpu::empty(rows.sizes(), rows.options(), at::MemoryFormat::ChannelsLast);
  std::vector<float> dgain(affine.gain.size()), doffset(affine.gain.size());
  backward_of_rows(in_rows(as_type(dy, x.scalar_type())),
                   rows,
                   affine,
                   groups,
                   moments.const_data_ptr<float>(),
                   silu,
                   dx,
                   dgain,
                   doffset);
  return affine_gradients(affine, dx.contiguous(x.suggest_memory_format()), dgain, doffset);
}

Backward backward_on_cpu(const at::Tensor& dy,
                         const at::Tensor& x,
                         const at::Tensor& moments,
                         const at::Tensor& weight,
                         const at::Tensor& bias,
                         const OptionalTensor& scale_shift,
                         int64_t groups) {
  return norm_backward_on_cpu(dy, x, moments, weight, bias, scale_shift, groups, /*silu=*/true);
}

TORCH_LIBRARY(dalle2, m) {
  m.def(
      "group_norm_silu(Tensor x, Tensor weight, Tensor bias, Tensor? scale_shift, int groups, "
      "float eps) -> (Tensor, Tensor)");
  m.def(
      "group_norm_silu_backward(Tensor dy, Tensor x, Tensor moments, Tensor weight, Tensor bias, "
      "Tensor? scale_shift, int groups) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(dalle2, CPU, m) {
  m.impl("group_norm_silu", &forward_on_cpu);
  m.impl("group_norm_silu_backward", &backward_on_cpu);
}

const auto& forward_operation() {
  static const auto found = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("dalle2::group_norm_silu", "")
                                .typed<decltype(forward_on_cpu)>();
  return found;
}

const auto& backward_operation() {
  static const auto found = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("dalle2::group_norm_silu_backward", "")
                                .typed<decltype(backward_on_cpu)>();
  return found;
}

OptionalTensor if_defined(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

/// LibTorch's norm of a channels-last map on the CPU takes E[x^2] - E[x]^2, in which a mean far from zero leaves no digits.
at::Tensor norm_plain(const GroupNormSiluInputs& inputs, int64_t groups, double eps) {
  return at::group_norm(inputs.x.contiguous(), groups, inputs.weight, inputs.bias, eps);
}

/// The gradients by ATen's operations, which have gradients of their own.
variable_list plain_norm_gradients(AutogradContext* context, const at::Tensor& dy) {
  const variable_list saved = context->get_saved_variables();
  const GroupNormSiluInputs in{saved[0], saved[1], saved[2], saved[3]};
  const int64_t groups = context->saved_data["groups"].toInt();
  const double eps = context->saved_data["eps"].toDouble();
  const at::Tensor y = context->saved_data["silu"].toBool() ? group_norm_silu_plain(in, groups, eps)
                                                            : norm_plain(in, groups, eps);
  variable_list wanted, found(7);
  std::vector<size_t> places;
  for (size_t i = 0; i < 4; ++i) {
    if (!saved[i].defined() || !context->needs_input_grad(i)) continue;
    wanted.push_back(saved[i]);
    places.push_back(i);
  }
  const variable_list grads = torch::autograd::grad(
      {y}, wanted, {dy}, /*retain_graph=*/std::nullopt, /*create_graph=*/true);
  for (size_t i = 0; i < places.size(); ++i) found[places[i]] = grads[i];
  return found;
}

struct GroupNorm : torch::autograd::Function<GroupNorm> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& bias,
                            const OptionalTensor& scale_shift,
                            int64_t groups,
                            double eps,
                            bool silu) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [y, moments] =
        silu ? forward_operation().call(x, weight, bias, scale_shift, groups, eps)
             : norm_on_cpu(x, weight, bias, scale_shift, groups, eps, /*silu=*/false);
    context->save_for_backward({x, weight, bias, scale_shift.value_or(at::Tensor()), moments});
    context->saved_data["groups"] = groups;
    context->saved_data["eps"] = eps;
    context->saved_data["silu"] = silu;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) return plain_norm_gradients(context, grads[0]);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &bias = saved[2], &scale_shift = saved[3];
    const OptionalTensor given = if_defined(scale_shift);
    const int64_t groups = context->saved_data["groups"].toInt();
    auto [dx, dweight, dbias, dscale_shift] =
        context->saved_data["silu"].toBool()
            ? backward_operation().call(grads[0], x, saved[4], weight, bias, given, groups)
            : norm_backward_on_cpu(
                  grads[0], x, saved[4], weight, bias, given, groups, /*silu=*/false);
    if (dscale_shift.defined()) dscale_shift = as_type(dscale_shift, scale_shift.scalar_type());
    variable_list found(7);  // one an argument of forward()
    found[0] = dx;
    found[1] = as_type(dweight, weight.scalar_type());
    found[2] = as_type(dbias, bias.scalar_type());
    found[3] = dscale_shift;
    return found;
  }
};

}  // namespace

at::Tensor group_norm_silu_plain(const GroupNormSiluInputs& inputs, int64_t groups, double eps) {
  const auto& [x, weight, bias, scale_shift] = inputs;
  if (!scale_shift.defined()) return at::silu(norm_plain(inputs, groups, eps));
  // (w n + b) (scale + 1) + shift = n [w (scale + 1)] + [b (scale + 1) + shift]: the brackets are
  // [B, C], so the affine part of the norm costs no pass of its own over the pixels.
  const std::vector<at::Tensor> parts = scale_shift.chunk(2, 1);
  const at::Tensor scale = parts[0] + 1;
  const at::Tensor gain = (scale * weight).unsqueeze(-1).unsqueeze(-1);
  const at::Tensor shift = at::addcmul(parts[1], scale, bias).unsqueeze(-1).unsqueeze(-1);
  const at::Tensor n = norm_plain({x, {}, {}, {}}, groups, eps);
  // Under autocast the norm's weights are float32 and its output may be half: the output decides,
  // as in the reference, where later norms take their eps from it.
  const at::ScalarType dtype = n.scalar_type();
  return at::silu(at::addcmul(shift.to(dtype), n, gain.to(dtype)));
}

bool has_group_norm_silu(const at::Tensor& x) {
  return (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16) && x.dim() == 4 &&
         (x.is_contiguous() || is_channels_last_map(x)) &&
         forward_operation().hasKernelForDispatchKey(x.options().computeDispatchKey());
}

at::Tensor group_norm_silu(const GroupNormSiluInputs& inputs, int64_t groups, double eps) {
  if (!has_group_norm_silu(inputs.x)) return group_norm_silu_plain(inputs, groups, eps);
  return GroupNorm::apply(inputs.x,
                          inputs.weight,
                          inputs.bias,
                          if_defined(inputs.scale_shift),
                          groups,
                          eps,
                          /*silu=*/true);
}

at::Tensor group_norm_of_map(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias,
                             int64_t groups,
                             double eps) {
  const bool has_loops = uses_cpu_algorithms(x.device()) && has_group_norm_silu(x);
  if (!has_loops) return norm_plain({x, weight, bias, {}}, groups, eps);
  return GroupNorm::apply(x, weight, bias, std::nullopt, groups, eps, /*silu=*/false);
}

}  // namespace dalle2
