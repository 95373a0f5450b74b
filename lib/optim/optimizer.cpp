// SPDX-License-Identifier: MIT
#include "optim/optimizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "kernels/cpu_algorithms.h"
#include "kernels/flat_update.h"

namespace dalle2 {
namespace {

int64_t padded(int64_t numel) {
  return (numel + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
}

}  // namespace

Optimizer::Optimizer(const FlatParameters& parameters, const OptimizerOptions& options)
    : options_(options),
      values_(parameters.values().narrow(0, 0, parameters.parameter_span())),
      slice_{0, values_.numel()},
      entries_(parameters.parameters()),
      by_offset_(entries_.size()),
      decay_of_(entries_.size(), options.weight_decay) {
  forget();
  std::iota(by_offset_.begin(), by_offset_.end(), size_t{0});
  std::ranges::sort(by_offset_, {}, [&](size_t i) { return entries_[i].offset; });
  groups_.push_back({options.weight_decay, {}});
  const bool grouped = is_adamw() && options.group_wd_params;
  if (grouped) groups_.push_back({0.0, {}});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const size_t group = grouped && entries_[i].tensor.dim() < 2 ? 1 : 0;
    groups_[group].members.push_back(i);
    decay_of_[i] = groups_[group].weight_decay;
  }
}

void Optimizer::forget() {
  steps_.assign(entries_.size(), 0);
  active_.clear();
  calls_.clear();  // given back, with the moments, before more is taken
  moments_ = {};
  moments_.exp_avg = at::zeros_like(slice_.of(values_));
  moments_.exp_avg_sq = at::zeros_like(moments_.exp_avg);
}

void Optimizer::keep_slice(const FlatSlice& slice) {
  const torch::NoGradGuard no_grad;
  slice_ = slice.overlap({0, values_.numel()});
  if (slice_.length() == 0) slice_ = {0, 0};
  forget();
}

void Optimizer::add_range(Call& call, size_t first, const FlatSlice& range) const {
  const FlatSlice kept = {range.begin - slice_.begin, range.end - slice_.begin};
  call.ranges.push_back(range);
  call.values.push_back(range.of(values_));
  call.exp_avgs.push_back(kept.of(moments_.exp_avg));
  call.exp_avg_sqs.push_back(kept.of(moments_.exp_avg_sq));
  call.firsts.push_back(first);
  call.steps.push_back(at::full({}, static_cast<double>(steps_[first]), values_.options()));
}

void Optimizer::build_calls(const std::vector<bool>& active) {
  calls_.clear();
  left_alone_.clear();
  const auto call_for = [&](double weight_decay) -> Call& {
    for (Call& call : calls_) {
      if (call.weight_decay == weight_decay) return call;
    }
    calls_.emplace_back().weight_decay = weight_decay;
    return calls_.back();
  };
  for (size_t k = 0; k < by_offset_.size(); ++k) {
    const size_t first = by_offset_[k];
    const auto is_alike = [&](size_t next) {
      return active[next] == active[first] &&
             (!active[first] ||
              (steps_[next] == steps_[first] && decay_of_[next] == decay_of_[first]));
    };
    while (k + 1 < by_offset_.size() && is_alike(by_offset_[k + 1])) ++k;
    // Includes the padding after the last one: it is zero, and an update leaves it zero.
    const FlatEntry& last = entries_[by_offset_[k]];
    const FlatSlice range =
        slice_.overlap({entries_[first].offset, last.offset + padded(last.numel)});
    if (range.length() == 0) continue;  // of a slice
    if (active[first]) {
      add_range(call_for(decay_of_[first]), first, range);
    } else {
      left_alone_.push_back(range);
    }
  }
  active_ = active;
}

void Optimizer::step(FlatGradients& gradients,
                     double lr,
                     const at::Tensor& grad_divisor,
                     const at::Tensor& found_inf,
                     const UpdateCompanions& companions) {
  const torch::NoGradGuard no_grad;
  const at::Tensor& flat = gradients.values();
  if (active_ != gradients.received()) build_calls(gradients.received());
  if (uses_cpu_algorithms(values_.device())) {
    if (found_inf.item<float>() != 0.0F) return;
    return update_on_cpu(flat, lr, 1.0 / grad_divisor.item<double>(), companions);
  }
  D2_CHECK(!companions.average.defined() && !companions.halves.defined(),
           "an update that takes no companions was given some");
  const at::Tensor counted = 1 - found_inf;
  for (const Call& call : calls_) {
    std::vector<at::Tensor> grads;
    for (const FlatSlice& range : call.ranges) grads.push_back(range.of(flat));
    for (const at::Tensor& step : call.steps) step.add_(counted);
    const auto update = [&](auto&& fused) {
      fused(call.values,
            grads,
            call.exp_avgs,
            call.exp_avg_sqs,
            /*max_exp_avg_sqs=*/at::TensorList{},
            call.steps,
            lr,
            options_.beta1,
            options_.beta2,
            call.weight_decay,
            options_.eps,
            /*amsgrad=*/false,
            /*maximize=*/false,
            grad_divisor,
            found_inf);
    };
    if (is_adamw()) {
      update([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
    } else {
      update([](auto&&... arguments) { at::_fused_adam_(arguments...); });
    }
  }
  torch::autograd::impl::bump_version(values_);  // LibTorch's fused updates do not
}

bool Optimizer::takes_companions() const {
  return uses_cpu_algorithms(values_.device()) && slice_.length() == values_.numel();
}

void Optimizer::update_on_cpu(const at::Tensor& grads,
                              double lr,
                              double grad_factor,
                              const UpdateCompanions& companions) {
  const auto part = [](const at::Tensor& flat, const FlatSlice& range) {
    return flat.defined() ? range.of(flat) : flat;
  };
  for (const Call& call : calls_) {
    for (size_t i = 0; i < call.ranges.size(); ++i) {
      const FlatSlice& range = call.ranges[i];
      call.steps[i].add_(1);
      const auto t = static_cast<double>(steps_[call.firsts[i]] + 1);
      loops::AdamStep step = {};
      step.grad_factor = static_cast<float>(grad_factor);
      step.kept = static_cast<float>(1.0 - lr * call.weight_decay);
      step.taken1 = static_cast<float>(1.0 - options_.beta1);
      step.beta2 = static_cast<float>(options_.beta2);
      step.taken2 = static_cast<float>(1.0 - options_.beta2);
      step.step_size = static_cast<float>(lr / (1.0 - std::pow(options_.beta1, t)));
      step.root_factor = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(options_.beta2, t)));
      step.eps = static_cast<float>(options_.eps);
      step.average_weight = static_cast<float>(companions.average_weight);
      adam_update_(step,
                   {call.values[i],
                    range.of(grads),
                    call.exp_avgs[i],
                    call.exp_avg_sqs[i],
                    part(companions.average, range),
                    part(companions.halves, range)});
    }
  }
  torch::autograd::impl::bump_version(values_);
  if (!companions.average.defined()) return;
  for (const FlatSlice& rest : left_alone_) {
    rest.of(companions.average).lerp_(rest.of(values_), companions.average_weight);
  }
}

void Optimizer::count_update() {
  for (size_t i = 0; i < steps_.size(); ++i) steps_[i] += active_[i] ? 1 : 0;
}

std::optional<ParameterState> Optimizer::state(size_t i, const FlatMoments& whole) const {
  if (steps_.at(i) == 0) return std::nullopt;
  D2_CHECK(whole.exp_avg.numel() == values_.numel(), "the moments are those of a slice");
  const FlatEntry& entry = entries_[i];
  return ParameterState{steps_[i], entry.of(whole.exp_avg), entry.of(whole.exp_avg_sq)};
}

void Optimizer::set_state(size_t i, const ParameterState& state) {
  const torch::NoGradGuard no_grad;
  const FlatEntry& entry = entries_.at(i);
  const auto set = [&](const at::Tensor& moments, const at::Tensor& of_entry) {
    copy_into_slice(moments, slice_, entry.offset, entry.flattened(of_entry));
  };
  steps_[i] = state.step;
  set(moments_.exp_avg, state.exp_avg);
  set(moments_.exp_avg_sq, state.exp_avg_sq);
  active_.clear();
}

double LrSchedule::undampened(int64_t step) const {
  if (!cosine_decay_max_steps) return base_lr * factor;
  const double phase =
      std::numbers::pi * static_cast<double>(step) / static_cast<double>(*cosine_decay_max_steps);
  return base_lr * (1.0 + std::cos(phase)) / 2.0 * factor;
}

double LrSchedule::at(int64_t step) const {
  if (!warmup_steps) return undampened(step);
  return undampened(step) *
         std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(*warmup_steps));
}

}  // namespace dalle2
