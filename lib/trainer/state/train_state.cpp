// SPDX-License-Identifier: MIT
#include "trainer/state/train_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "model/clip/clip_encoder.h"

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

/// {state: {index: {step, exp_avg, exp_avg_sq}}, param_groups: [...]} as Adam or AdamW writes it
/// after `steps` updates. Tensors are views of the moments.
/// @param moments of all parameters: Optimizer::moments() unless they are spread over ranks
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

/// State of LambdaLR with a constant factor, or of CosineAnnealingLR.
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

/// Copies moments and step counts in. Rates and decays stay this run's own.
/// @param mention whether a rate or decay that differs from the checkpoint's is mentioned in the
/// log
/// @throws DataError if groups, indices or shapes are those of another network or grouping
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

/// A loss scaler, as torch.amp.GradScaler.state_dict() has it.
Dict scaler_state(const GradScaler& scaler) {
  const GradScalerOptions& options = scaler.options();
  return {{{"scale", scaler.current_scale()},
           {"growth_factor", options.growth_factor},
           {"backoff_factor", options.backoff_factor},
           {"growth_interval", options.growth_interval},
           {"_growth_tracker", scaler.growth_tracker()}}};
}

/// Loads scale and count; the factors stay those of the scaler.
/// @throws DataError unless the scale is finite and not negative and the count is in its range
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

}  // namespace

bool TrainerContents::has(const std::string& name, bool trained) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    if ((parts[i] != nullptr) == trained && name.starts_with(plan.parts[i].prefix)) return true;
  }
  return false;
}

StateDict TrainerContents::with_carried(StateDict of_model) const {
  if (carried.empty()) return of_model;
  StateDict all = carried;
  for (auto& entry : of_model) all.push_back(std::move(entry));
  const auto place = [this](const auto& entry) {
    size_t i = 0;
    while (i < plan.parts.size() && !entry.first.starts_with(plan.parts[i].prefix)) ++i;
    return i;
  };
  std::ranges::stable_sort(all, {}, place);
  return all;
}

void keep_own_clip(StateDict& weights, const torch::nn::Module& model) {
  const auto is_of_clip = [](const auto& entry) { return is_of_frozen_clip(entry.first); };
  std::erase_if(weights, is_of_clip);
  for (auto& entry : state_dict(model)) {
    if (is_of_clip(entry)) weights.push_back(std::move(entry));
  }
}

void TrainState::model(const std::string& key) {
  torch::nn::Module& model = *contents_.plan.model;
  if (!root_) return out_.set(key, to_dict(contents_.with_carried(state_dict(model))));
  const Cursor saved = root_->at(key);
  StateDict weights = saved.as_state_dict();
  std::erase_if(weights,
                [&](const auto& entry) { return contents_.has(entry.first, /*trained=*/false); });
  keep_own_clip(weights, model);
  warn_of_rest(load_state_dict(model, weights, "", strict_, saved.where()), saved.where());
}

void TrainState::version(const std::string& key) {
  const std::string& ours = contents_.plan.version;
  if (!root_) return out_.set(key, ours);
  const auto version = root_->find(key);
  const std::string theirs =
      version && version->value().is_string() ? version->as_string() : "unknown";
  if (theirs == ours) return;
  log_info("ckpt",
           "loading a {} saved at version {}; the layout here is that of version {}",
           contents_.plan.model_name,
           theirs,
           ours);
}

void TrainState::steps(const std::string& key) {
  std::vector<int64_t>& steps = contents_.steps;
  if (!root_) return out_.set(key, at::tensor(steps, at::kLong));
  const Cursor entry = root_->at(key);
  const at::Tensor saved = entry.as_tensor().to(at::kCPU, at::kLong).flatten();
  if (saved.numel() != std::ssize(steps)) {
    throw DataError(
        "{}: expected {}, got {}",
        entry.where(),
        steps.size() == 1
            ? "one step count"
            : fmt::format("step counts of {} {}s", steps.size(), contents_.plan.part_noun),
        saved.numel());
  }
  for (size_t i = 0; i < steps.size(); ++i)
    steps[i] = saved[static_cast<int64_t>(i)].item<int64_t>();
}

void TrainState::lora(const std::string& key) {
  if (!contents_.lora) return;
  if (!root_) return out_.set(key, to_dict(*contents_.lora));
  const LoraInfo saved = lora_info_of(root_->at(key));
  if (saved.alpha == contents_.lora->alpha) return;
  log_info("ckpt",
           "{}: saved with an alpha of {}; this run uses its own /train/lora/alpha = {}",
           root_->at(key).where(),
           saved.alpha,
           contents_.lora->alpha);
}

void TrainState::optimizer(const std::string& key, size_t i) {
  const auto& part = contents_.parts[i];
  if (root_) {
    if (!only_model_ && part) optimizers_.emplace_back(key, i);
    return;
  }
  const FlatMoments moments = part ? part->whole_moments() : FlatMoments{};
  // Rank 0 has them, and an untrained part has none.
  out_.set(
      key,
      moments.exp_avg.defined() ? optimizer_state(*part, moments, contents_.steps[i]) : Value());
}

void TrainState::schedule(const std::string& key, size_t i) {
  const auto& part = contents_.parts[i];
  note(key,
       part ? schedule_state(part->schedule, part->optimizer.groups().size(), contents_.steps[i])
            : Value());
}

void TrainState::take_rest() {
  for (const auto& [key, part] : optimizers_) read_optimizer(key, *contents_.parts[part]);
}

void TrainState::read_optimizer(const std::string& key, TrainedPart& part) {
  const auto saved = root_->find(key);
  if (!saved) {
    throw DataError(
        "{}: no entry '{}': the optimizer's state is missing, without which training cannot "
        "continue as before. Expected a checkpoint (`save_type` checkpoint), not a file of weights",
        root_->where(),
        key);
  }
  if (saved->is_none()) {
    throw DataError(
        "{}: this stage was not trained when the checkpoint was made, but is now; continue with "
        "the same /train/unet_training_mask, or load only the weights",
        saved->where());
  }
  // If the checkpoint holds its config, whoever compares configs reports all that has changed.
  const auto config = root_->find("config");
  const bool mention = !config || !config->value().is_dict();
  load_optimizer_state(*saved, part, mention);
}

void TrainState::write_averages(const AverageLayout& layout) {
  const EmaKind kind = *contents_.averages;
  Dict of_ema_pytorch = to_dict(StateDict{});
  List of_diffusers;
  for (size_t i = 0; i < contents_.parts.size(); ++i) {
    const auto& part = contents_.parts[i];
    if (kind == EmaKind::diffusers) {
      of_diffusers.items.push_back(part ? part->average->diffusers_state() : Value());
    } else if (part) {
      part->average->write_ema_pytorch(of_ema_pytorch, layout.prefix(i), layout);
    } else {
      WeightAverage::write_untrained(of_ema_pytorch, layout.prefix(i));
    }
  }
  if (kind == EmaKind::ema_pytorch) {
    out_.set(layout.key(kind), std::move(of_ema_pytorch));
  } else if (layout.many_parts) {
    out_.set(layout.key(kind), std::move(of_diffusers));
  } else {
    out_.set(layout.key(kind), std::move(of_diffusers.items.front()));
  }
  if (layout.model_key != nullptr && kind == EmaKind::ema_pytorch)
    out_.set(layout.model_key, to_dict(contents_.parts.front()->average->averaged_model(layout)));
}

void TrainState::averages(const AverageLayout& layout) {
  if (!contents_.averages) return;
  if (!root_) return write_averages(layout);
  const std::string key = layout.key(*contents_.averages);
  auto saved = only_model_ ? std::nullopt : root_->find(key);
  if (!saved && !only_model_) {
    log_warning("ckpt",
                "{}: no averaged weights '{}' (it was made with use_ema false or another "
                "ema.kind): they begin as copies of the weights",
                root_->where(),
                key);
  }
  if (saved && saved->size() == 0) saved.reset();
  if (saved && layout.many_parts && *contents_.averages == EmaKind::diffusers &&
      saved->size() != contents_.parts.size()) {
    throw DataError("{}: expected the averages of {} {}s, got {}",
                    saved->where(),
                    contents_.parts.size(),
                    contents_.plan.part_noun,
                    saved->size());
  }
  for (size_t i = 0; i < contents_.parts.size(); ++i) {
    if (!contents_.parts[i]) continue;
    WeightAverage& average = *contents_.parts[i]->average;
    if (!saved) {
      average.begin_anew();
    } else if (*contents_.averages == EmaKind::diffusers) {
      average.read_diffusers(layout.many_parts ? saved->at(i) : *saved);
    } else {
      average.read_ema_pytorch(*saved, layout.prefix(i), layout, strict_);
    }
  }
}

void TrainState::post_hoc_averages(const std::string& key) {
  const auto saved = root_ && !only_model_ ? root_->find(key) : std::nullopt;
  List all;
  bool any = false;
  for (size_t i = 0; i < contents_.parts.size(); ++i) {
    const auto& part = contents_.parts[i];
    const bool has = part && part->post_hoc;
    any = any || has;
    if (!root_) {
      all.items.push_back(has ? Value(part->post_hoc->state(part->plan.prefix)) : Value());
    } else if (has && saved && i < saved->size() && !saved->at(i).is_none()) {
      part->post_hoc->load_state(saved->at(i));
    } else if (has) {
      part->post_hoc->begin_anew();
    }
  }
  if (any && !root_) out_.set(key, std::move(all));
}

void TrainState::scaler(const std::string& key, size_t i) {
  const auto& part = contents_.parts[i];
  if (only_model_ || !part || !part->scaler) return;
  if (!root_) return out_.set(key, scaler_state(*part->scaler));
  if (const auto saved = root_->find(key)) return load_scaler_state(*saved, *part->scaler);
  const double initial = part->scaler->options().init_scale;
  log_info("ckpt",
           "{}: no loss scale '{}' (it was not made with fp16): it begins with {}",
           root_->where(),
           key,
           initial);
  part->scaler->set_state(initial, 0);
}

void TrainState::skipped(const std::string& key, bool flat) {
  if (only_model_) return;
  const int64_t count = std::ssize(contents_.parts);
  if (!root_) {
    std::vector<int64_t> counts;
    for (const auto& part : contents_.parts) {
      const SkippedUpdates skipped = part ? part->skipped : SkippedUpdates{};
      counts.insert(counts.end(), {skipped.total, skipped.in_a_row});
    }
    if (std::ranges::all_of(counts, [](int64_t n) { return n == 0; })) return;
    const at::Tensor all = at::tensor(counts, at::kLong);
    return out_.set(key, flat ? all : all.view({-1, 2}));
  }
  const auto saved = root_->find(key);
  const at::Tensor counts = saved ? saved->as_tensor().to(at::kCPU, at::kLong).flatten()
                                  : at::zeros({count * 2}, at::kLong);
  if (counts.numel() != count * 2) {
    throw DataError("{}: expected the skipped updates of {} {}s, [{}, 2], got {}",
                    saved->where(),
                    count,
                    contents_.plan.part_noun,
                    count,
                    c10::str(saved->as_tensor().sizes()));
  }
  for (int64_t i = 0; i < count; ++i) {
    if (const auto& part = contents_.parts[static_cast<size_t>(i)])
      part->skipped = {counts[2 * i].item<int64_t>(), counts[2 * i + 1].item<int64_t>()};
  }
}

}  // namespace dalle2
