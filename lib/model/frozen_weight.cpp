// SPDX-License-Identifier: MIT
#include "model/frozen_weight.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <utility>

#include "kernels/convolution.h"
#include "kernels/half_weights.h"
#include "model/layers.h"

namespace dalle2 {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Autocast brings operands of different types together by itself.
bool needs_cast(const at::Tensor& x, const at::Tensor& weight) {
  return weight.scalar_type() != x.scalar_type() && !weight.requires_grad() &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

struct Derived {
  at::Tensor weight;  // kept alive, so that its address stays its own
  at::Tensor values;
};
/// By weight and by a type: that which decides the eps, or autocast's.
using DerivedWeights = std::map<std::pair<const void*, at::ScalarType>, Derived>;
thread_local DerivedWeights derived;  // filters and views of weights at rest
thread_local int at_rest = 0;         // WeightsAtRest that live on this thread

/// Weights at rest in autocast's type, which would cast them at each use.
class RestingHalves final : public HalfWeightSource {
 public:
  /// None for what is no weight: views and results, which are new tensors each time.
  at::Tensor half_of(const at::Tensor& weight) override {
    const at::ScalarType dtype = at::autocast::get_autocast_dtype(weight.device().type());
    const bool is_weight = !weight.is_view() && !weight.is_inference() && weight.is_leaf();
    if (!is_weight || at::GradMode::is_enabled() || weight.scalar_type() != at::kFloat) return {};
    Derived& copy = copies_[{weight.unsafeGetTensorImpl(), dtype}];
    if (!copy.values.defined()) copy = {weight, weight.to(dtype)};
    return copy.values;
  }

 private:
  DerivedWeights copies_;
};

/// Of all WeightsAtRest that live on this thread.
struct AtRest {
  RestingHalves halves;
  HalfWeightScope scope{halves};
};
thread_local std::optional<AtRest> resting;

at::Tensor standardize_filters(const at::Tensor& weight, at::ScalarType dtype) {
  // In the order in which they lie: their mean and variance do not depend on it.
  const bool last = !weight.is_contiguous() && weight.is_contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor laid = last ? weight.permute({0, 2, 3, 1}) : weight;
  const at::Tensor filters = laid.flatten(1);
  const at::Tensor normed =
      at::layer_norm(filters, {filters.size(1)}, {}, {}, norm_eps(dtype)).view_as(laid);
  return last ? normed.permute({0, 3, 1, 2}) : normed;
}

/// Filters in the order that the CPU's convolution of a map like x would bring them into at each use.
bool needs_order(const at::Tensor& x, const at::Tensor& weight) {
  const auto last = at::MemoryFormat::ChannelsLast;
  return x.is_cpu() && weight.size(2) > 1 && x.is_contiguous(last) && !x.is_contiguous() &&
         !weight.is_contiguous(last);
}

/// Autocast keeps no casts of derived filters. Tiles take them as they are.
at::Tensor in_type_of_convolution(const at::Tensor& x,
                                  const at::Tensor& filters,
                                  const ConvSettings& settings) {
  const at::DeviceType device = filters.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return filters;
  if (is_by_tiles(algorithm_for({x, filters, {}}, settings.stride, settings.padding)))
    return filters;
  return filters.to(at::autocast::get_autocast_dtype(device));
}

/// What a convolution of x multiplies by.
at::Tensor filters_for(const at::Tensor& x,
                       const at::Tensor& weight,
                       const ConvSettings& settings) {
  const bool standardize = settings.standardize;
  const at::ScalarType dtype = x.scalar_type();
  // A view is a new tensor each time, and would never be found again.
  if (at_rest == 0 || at::GradMode::is_enabled() || weight.is_view()) {
    return standardize ? standardize_filters(weight, dtype) : weight;
  }
  const bool order = needs_order(x, weight);
  if (!standardize && !order) return weight;
  Derived& entry = derived[{weight.unsafeGetTensorImpl(), dtype}];
  if (!entry.values.defined()) {
    at::Tensor filters = standardize ? standardize_filters(weight, dtype) : weight;
    if (order) filters = in_order_for_convolutions(filters);
    entry = {weight, in_type_of_convolution(x, filters, settings)};
  }
  return entry.values;
}

struct FrozenMatmul : torch::autograd::Function<FrozenMatmul> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({weight});
    return at::matmul(x, weight.to(x.scalar_type()));
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!context->needs_input_grad(0)) return variable_list(2);
    const at::Tensor weight = context->get_saved_variables()[0].to(grads[0].scalar_type());
    return {at::matmul(grads[0], weight.transpose(-1, -2)), at::Tensor()};
  }
};

struct FrozenConv : torch::autograd::Function<FrozenConv> {
  static at::Tensor prepared(const at::Tensor& weight, bool standardize, at::ScalarType dtype) {
    const at::Tensor cast = weight.to(dtype);
    return standardize ? standardize_filters(cast, dtype) : cast;
  }

  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            int64_t stride,
                            int64_t padding,
                            bool standardize) {
    context->save_for_backward({weight});
    context->saved_data["sizes"] = x.sizes();
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    context->saved_data["standardize"] = standardize;
    return at::conv2d(x, prepared(weight, standardize, x.scalar_type()), {}, stride, padding);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    variable_list found(5);
    if (!context->needs_input_grad(0)) return found;
    const at::Tensor& grad = grads[0];
    const at::Tensor weight = prepared(context->get_saved_variables()[0],
                                       context->saved_data["standardize"].toBool(),
                                       grad.scalar_type());
    const int64_t stride = context->saved_data["stride"].toInt();
    const int64_t padding = context->saved_data["padding"].toInt();
    // Of the input only the shape matters for its own gradient.
    const at::Tensor shape = at::empty(context->saved_data["sizes"].toIntVector(), grad.options());
    found[0] = std::get<0>(at::convolution_backward(grad,
                                                    shape,
                                                    weight,
                                                    /*bias_sizes=*/std::nullopt,
                                                    {stride, stride},
                                                    {padding, padding},
                                                    /*dilation=*/{1, 1},
                                                    /*transposed=*/false,
                                                    /*output_padding=*/{0, 0},
                                                    /*groups=*/1,
                                                    {true, false, false}));
    return found;
  }
};

}  // namespace

WeightsAtRest::WeightsAtRest() {
  if (++at_rest == 1) resting.emplace();
}

WeightsAtRest::~WeightsAtRest() {
  if (--at_rest > 0) return;
  resting.reset();
  derived.clear();
}

at::Tensor view_of_weight(const at::Tensor& weight,
                          const std::function<at::Tensor(const at::Tensor&)>& view) {
  if (at_rest == 0 || at::GradMode::is_enabled() || weight.is_view()) return view(weight);
  Derived& entry = derived[{weight.unsafeGetTensorImpl(), weight.scalar_type()}];
  if (!entry.values.defined()) entry = {weight, view(weight).contiguous()};
  return entry.values;
}

at::Tensor weighted_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (!needs_cast(x, weight)) return at::linear(x, in_half(weight), in_half(bias));
  const at::Tensor product = FrozenMatmul::apply(x, weight.t());
  return bias.defined() ? product + bias : product;
}

at::Tensor weighted_bmm(const at::Tensor& x, const at::Tensor& weight) {
  return needs_cast(x, weight) ? FrozenMatmul::apply(x, weight) : at::bmm(x, weight);
}

at::Tensor weighted_conv(const at::Tensor& x,
                         const at::Tensor& weight,
                         const at::Tensor& bias,
                         const ConvSettings& settings) {
  const auto& [stride, padding, standardize] = settings;
  if (!needs_cast(x, weight)) {
    return convolution({x, filters_for(x, weight, settings), bias}, stride, padding);
  }
  const at::Tensor product = FrozenConv::apply(x, weight, stride, padding, standardize);
  return bias.defined() ? product + bias.view({1, -1, 1, 1}) : product;
}

}  // namespace dalle2
