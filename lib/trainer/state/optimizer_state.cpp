// SPDX-License-Identifier: MIT
#include "trainer/state/optimizer_state.h"

#include <torch/torch.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

/// Indices of the parameters of each group: torch's numbering. None for PartPlan::numbered_before, which
/// come first in their groups; with two groups those with decay are in the first, as the reference divides
/// them.
using TorchOrder = std::vector<std::vector<std::optional<size_t>>>;

TorchOrder torch_order(const TrainedPart& part) {
  const std::vector<ParameterGroup>& groups = part.optimizer.groups();
  TorchOrder order(groups.size());
  for (const at::Tensor& parameter : part.plan.numbered_before)
    order[groups.size() > 1 && parameter.dim() < 2 ? 1 : 0].emplace_back();
  for (size_t g = 0; g < groups.size(); ++g)
    order[g].insert(order[g].end(), groups[g].members.begin(), groups[g].members.end());
  return order;
}

// The reference has a plain 0 where there is no decay.
Value decay_value(double weight_decay) {
  return weight_decay == 0.0 ? Value(int64_t{0}) : Value(weight_decay);
}

Dict group_state(const Optimizer& optimizer,
                 const LrSchedule& schedule,
                 size_t group,
                 int64_t first,
                 int64_t count,
                 int64_t steps) {
  const OptimizerOptions& options = optimizer.options();
  const ParameterGroup& members = optimizer.groups()[group];
  Dict state;
  // A group that sets its own decay has it before the defaults, as torch.optim adds them.
  if (group > 0) state.set("weight_decay", decay_value(members.weight_decay));
  state.set("lr", schedule.at(steps));
  state.set("betas", Tuple{{options.beta1, options.beta2}});
  state.set("eps", options.eps);
  if (group == 0) state.set("weight_decay", decay_value(members.weight_decay));
  state.set("amsgrad", false);
  state.set("maximize", false);
  state.set("foreach", Value());
  state.set("capturable", false);
  state.set("differentiable", false);
  state.set("fused", Value());
  state.set("decoupled_weight_decay", optimizer.is_adamw());
  state.set("initial_lr", schedule.base_lr);
  List indices;
  for (int64_t i = 0; i < count; ++i) indices.items.emplace_back(first + i);
  state.set("params", std::move(indices));
  return state;
}

/// Logs a number of the checkpoint that differs from this run's.
void mention_difference(const Cursor& group, const char* key, const char* config_key, double ours) {
  if (!group.has(key)) return;
  const double theirs = group.at(key).as_double();
  if (std::abs(theirs - ours) > 1e-6 * std::abs(ours)) {
    log_info("ckpt",
             "{}: saved with {} = {}; this run uses its own /train/{} = {}",
             group.where(),
             key,
             theirs,
             config_key,
             ours);
  }
}

void check_groups(const Cursor& groups, const TorchOrder& order) {
  if (groups.size() != order.size()) {
    throw DataError(
        "{}: expected {} groups of parameters, got {}. Groups follow from /train/wd and "
        "/train/group_wd_params: keep the values that the checkpoint was made with",
        groups.where(),
        order.size(),
        groups.size());
  }
  for (size_t g = 0; g < order.size(); ++g) {
    const size_t members = groups.at(g).at("params").size();
    if (members == order[g].size()) continue;
    throw DataError("{}: expected {} parameters, got {}: the optimizer belongs to another network",
                    groups.at(g).where(),
                    order[g].size(),
                    members);
  }
}

at::Tensor moment(const Cursor& entry, const char* key, const FlatEntry& parameter) {
  const Cursor cursor = entry.at(key);
  if (cursor.as_tensor().sizes() != parameter.tensor.sizes()) {
    throw DataError("{}: expected the shape of '{}', {}, got {}",
                    cursor.where(),
                    parameter.name,
                    c10::str(parameter.tensor.sizes()),
                    c10::str(cursor.as_tensor().sizes()));
  }
  return cursor.as_tensor();
}

}  // namespace

Dict optimizer_state(const TrainedPart& part, const FlatMoments& moments, int64_t steps) {
  Dict states;
  List groups;
  int64_t index = 0;
  const TorchOrder order = torch_order(part);
  for (size_t g = 0; g < order.size(); ++g) {
    groups.items.emplace_back(
        group_state(part.optimizer, part.schedule, g, index, std::ssize(order[g]), steps));
    for (const std::optional<size_t> i : order[g]) {
      if (const auto state = i ? part.optimizer.state(*i, moments) : std::nullopt) {
        Dict entry;
        entry.set("step", at::full({}, static_cast<double>(state->step), at::kFloat));
        entry.set("exp_avg", state->exp_avg);
        entry.set("exp_avg_sq", state->exp_avg_sq);
        states.items.emplace_back(Value(index), Value(std::move(entry)));
      }
      ++index;
    }
  }
  Dict state;
  state.set("state", std::move(states));
  state.set("param_groups", std::move(groups));
  return state;
}

Dict schedule_state(const LrSchedule& schedule, size_t num_groups, int64_t steps) {
  const auto for_each_group = [&](const Value& value) {
    return List{std::vector<Value>(num_groups, value)};
  };
  Dict state;
  if (schedule.cosine_decay_max_steps) {
    state.set("T_max", *schedule.cosine_decay_max_steps);
    state.set("eta_min", 0.0);
  }
  state.set("base_lrs", for_each_group(schedule.base_lr));
  state.set("last_epoch", steps);
  state.set("_step_count", steps + 1);
  state.set("_is_initial", false);
  state.set("_get_lr_called_within_step", false);
  state.set("_last_lr", for_each_group(schedule.undampened(steps)));
  if (!schedule.cosine_decay_max_steps) state.set("lr_lambdas", for_each_group(Value()));
  return state;
}

void load_optimizer_state(const Cursor& checkpoint, TrainedPart& part, bool mention) {
  Optimizer& optimizer = part.optimizer;
  const Cursor groups = checkpoint.at("param_groups");
  const TorchOrder order = torch_order(part);
  check_groups(groups, order);
  for (size_t g = 0; mention && g < groups.size(); ++g) {
    mention_difference(groups.at(g), "initial_lr", "lr", part.schedule.base_lr);
    mention_difference(groups.at(g), "weight_decay", "wd", optimizer.groups()[g].weight_decay);
    mention_difference(groups.at(g), "eps", "eps", optimizer.options().eps);
  }

  std::vector<std::optional<size_t>> numbers;
  for (const auto& group : order) numbers.insert(numbers.end(), group.begin(), group.end());
  optimizer.forget();
  const Cursor states = checkpoint.at("state");
  for (const auto& [key, value] : states.as_dict().items) {
    const int64_t index = key.as_int(states.where());
    if (index < 0 || index >= std::ssize(numbers)) {
      throw DataError(
          "{}: expected indices of {} parameters, got {}", states.where(), numbers.size(), index);
    }
    const std::optional<size_t> i = numbers[static_cast<size_t>(index)];
    if (!i) continue;  // what is never trained has no use for it
    const FlatEntry& parameter = part.parameters.parameters()[*i];
    const Cursor entry(value, states.where() + "/" + std::to_string(index));
    optimizer.set_state(*i,
                        ParameterState{entry.at("step").as_int(),
                                       moment(entry, "exp_avg", parameter),
                                       moment(entry, "exp_avg_sq", parameter)});
  }
}

Dict scaler_state(const GradScaler& scaler) {
  const GradScalerOptions& options = scaler.options();
  Dict state;
  state.set("scale", scaler.current_scale());
  state.set("growth_factor", options.growth_factor);
  state.set("backoff_factor", options.backoff_factor);
  state.set("growth_interval", options.growth_interval);
  state.set("_growth_tracker", scaler.growth_tracker());
  return state;
}

void load_scaler_state(const Cursor& saved, GradScaler& scaler) {
  const Cursor scale = saved.at("scale");
  const Cursor tracker = saved.at("_growth_tracker");
  if (!std::isfinite(scale.as_double()) || scale.as_double() < 0) {
    throw DataError("{}: expected a loss scale, a finite number >= 0, got {}",
                    scale.where(),
                    scale.as_double());
  }
  const int64_t interval = scaler.options().growth_interval;
  if (tracker.as_int() < 0 || tracker.as_int() >= interval) {
    throw DataError("{}: expected a count of updates from 0 to {}, got {}",
                    tracker.where(),
                    interval - 1,
                    tracker.as_int());
  }
  scaler.set_state(scale.as_double(), tracker.as_int());
}

}  // namespace dalle2
