// SPDX-License-Identifier: MIT
#include "trainer/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

at::ScalarType scalar_type(FrozenDtype dtype) {
  constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};
  return kTypes[static_cast<size_t>(dtype)];
}

/// With `counts_frozen` all parameters, the frozen rotary frequencies of a prior too.
std::vector<std::string> optimized_names(const PartPlan& plan, bool adapters) {
  if (adapters || !plan.counts_frozen) return trained_parameters(*plan.network);
  std::vector<std::string> names;
  for (const auto& item : plan.network->named_parameters()) names.push_back(item.key());
  return names;
}

}  // namespace

template <template <class> class Per>
PartOptions part_options(const OptimizerConfig<Per>& config, size_t index) {
  OptimizerOptions optimizer;
  optimizer.weight_decay = value_for(config.wd, index);
  optimizer.beta1 = config.betas[0];
  optimizer.beta2 = config.betas[1];
  optimizer.eps = value_for(config.eps, index);
  optimizer.group_wd_params = config.group_wd_params;
  return {optimizer,
          {.base_lr = value_for(config.lr, index),
           .warmup_steps = value_for(config.warmup_steps, index),
           .cosine_decay_max_steps = value_for(config.cosine_decay_max_steps, index)},
          value_for(config.max_grad_norm, index).value_or(std::numeric_limits<double>::infinity())};
}
template PartOptions part_options<Single>(const OptimizerConfig<Single>&, size_t);
template PartOptions part_options<OneOrMany>(const OptimizerConfig<OneOrMany>&, size_t);

Trainer::Trainer(ModelPlan plan, const SharedTrainConfig& config, const at::Device& device)
    : contents_{.plan = std::move(plan)},
      device_(device),
      precision_(
          choose_precision(config.mixed_precision, config.amp, half_precision_support(device))),
      settles_at_once_(device.is_cpu()),
      averages_change_weights_(config.update_model_with_ema_every.has_value()) {
  const std::vector<PartPlan>& parts = contents_.plan.parts;
  contents_.steps.assign(parts.size(), 0);
  if (config.use_ema) contents_.averages = config.ema.kind;
  std::vector<std::shared_ptr<torch::nn::Module>> networks;
  for (const PartPlan& part : parts) networks.push_back(part.network);
  auto dropouts = add_adapters(networks, config);
  const LoraConfig& lora = config.lora;
  if (lora.rank > 0)
    contents_.lora = LoraInfo{.rank = lora.rank, .alpha = lora.strength(), .targets = lora.targets};
  contents_.plan.model->to(device);
  contents_.plan.model->train();
  for (size_t i = 0; i < parts.size(); ++i) add_part(parts[i], config, std::move(dropouts[i]));
}

void Trainer::add_part(const PartPlan& plan,
                       const SharedTrainConfig& config,
                       std::shared_ptr<DropoutSeed> dropout) {
  auto& added = contents_.parts.emplace_back();
  if (!plan.network) return;
  added = std::make_unique<TrainedPart>(plan, optimized_names(plan, config.lora.rank > 0));
  if (config.lora.dropout > 0) added->dropout = std::move(dropout);
  added->settings = {
      device_, precision_.precision, config.max_batch_size, contents_.plan.has_lanes};
  if (precision_.precision == MixedPrecision::fp16) added->scaler.emplace(device_);
  if (config.use_ema) {
    added->average = std::make_unique<WeightAverage>(*plan.network, added->parameters, config);
  }
  if (config.post_hoc_ema.save_every_n_steps) {
    added->post_hoc = std::make_unique<PostHocAverages>(added->parameters, config.post_hoc_ema);
  }
  if (contents_.plan.records_passes && !PassGraphs::fault_of(device_, /*processes=*/1)) {
    added->graphs =
        std::make_unique<PassGraphs>(plan.name, added->gradients, plan.network->buffers(), device_);
  }
}

TrainedPart& Trainer::part(int64_t number) const {
  const ModelPlan& plan = contents_.plan;
  if (number < 1 || number > num_parts()) {
    throw ConfigError("{} {}: this {} has {}s 1 to {}",
                      plan.part_noun,
                      number,
                      plan.model_name,
                      plan.part_noun,
                      num_parts());
  }
  const auto& found = contents_.parts[static_cast<size_t>(number - 1)];
  if (!found) {
    throw ConfigError("{} {} is not trained: {}", plan.part_noun, number, plan.untrained_reason);
  }
  return *found;
}

void Trainer::set_step_times(StepTimes* times) {
  for (const auto& each : contents_.parts) {
    if (each) each->settings.step_times = times;
  }
}

void Trainer::forget_graphs() {
  for (const auto& recorded : contents_.parts) {
    if (recorded && recorded->graphs) recorded->graphs->forget();
  }
}

void Trainer::settle(size_t index) const {
  const auto& settled = contents_.parts[index];
  if (settled && settled->settle()) ++contents_.steps[index];
}

void Trainer::connect(ProcessGroup& group,
                      const ExchangeOptions& options,
                      const ShardOptions& sharding) {
  const torch::NoGradGuard no_grad;
  if (contents_.plan.records_passes && group.is_main()) {
    if (const auto fault = PassGraphs::fault_of(device_, group.size()))
      log_warning("train", "{}", *fault);
  }
  if (!group.is_alone()) {
    for (const auto& item : contents_.plan.model->named_parameters()) {
      if (!item.value().requires_grad()) group.broadcast(item.value(), "frozen weights");
    }
  }
  for (const auto& connected : contents_.parts) {
    if (!connected) continue;
    connected->connect(group, options, sharding);
    connected->begin_averages_anew();
  }
}

bool Trainer::is_sharded() const {
  return std::ranges::any_of(contents_.parts,
                             [](const auto& part) { return part && part->shards; });
}

HeldAverages Trainer::hold_averages() const {
  settle_all();
  HeldAverages held;
  for (const auto& part : contents_.parts) {
    if (part && part->average) held.emplace_back(*part->average);
  }
  return held;
}

void Trainer::finish_without_samples(const std::vector<int64_t>& parts) {
  for (const int64_t number : parts) part(number).finish_exchange();
}

int64_t Trainer::checksum() const {
  settle_all();
  uint64_t sum = 0;
  for (const auto& each : contents_.parts) {
    if (!each) continue;
    // Sums of bits commute, so the order in which a device adds does not matter. In pieces, for the
    // wide copy of a whole network would be twice its size.
    constexpr int64_t kPiece = int64_t{1} << 24;
    for (const at::Tensor& piece : each->parameters.values().view(at::kInt).split(kPiece)) {
      sum = sum * 31 + static_cast<uint64_t>(piece.to(at::kLong).sum().item<int64_t>());
    }
  }
  return static_cast<int64_t>(sum);
}

void Trainer::update(int64_t number) {
  optimize(number);
  average(number);
}

void Trainer::optimize(int64_t number) {
  TrainedPart& updated = part(number);
  const auto i = static_cast<size_t>(number - 1);
  timed(updated.settings.step_times, StepPhase::kOptimizer, [&] {
    settle(i);  // the previous update
    updated.update(updated.schedule.at(contents_.steps[i]));
    updated.share_weights();
  });
}

void Trainer::average(int64_t number) {
  TrainedPart& updated = part(number);
  timed(updated.settings.step_times, StepPhase::kOptimizer, [&] {
    updated.average_weights();
    if (averages_change_weights_) updated.share_weights();
    if (settles_at_once_) settle(static_cast<size_t>(number - 1));
  });
}

bool Trainer::is_trained(int64_t number) const {
  return number >= 1 && number <= num_parts() &&
         contents_.parts[static_cast<size_t>(number - 1)] != nullptr;
}

std::vector<int64_t> Trainer::trained_parts() const {
  std::vector<int64_t> numbers;
  for (int64_t number = 1; number <= num_parts(); ++number) {
    if (is_trained(number)) numbers.push_back(number);
  }
  return numbers;
}

int64_t Trainer::steps(int64_t number, bool settled) const {
  const auto i = static_cast<size_t>(number - 1);
  const int64_t& made = contents_.steps.at(i);
  if (settled) settle(i);
  const auto& counted = contents_.parts[i];
  return made + (counted && counted->outcome.pending() ? 1 : 0);
}

std::optional<double> Trainer::ema_decay(int64_t number) const {
  const TrainedPart& averaged = part(number);
  settle_all();
  return averaged.average ? std::optional<double>(averaged.average->rule().decay()) : std::nullopt;
}

SkippedUpdates Trainer::skipped_updates(int64_t number, bool settled) const {
  const TrainedPart& asked = part(number);
  if (settled) settle(static_cast<size_t>(number - 1));
  return asked.skipped;
}

void Trainer::set_skipped_updates(int64_t number, const SkippedUpdates& skipped) {
  TrainedPart& asked = part(number);
  settle(static_cast<size_t>(number - 1));
  asked.skipped = skipped;
}

std::optional<double> Trainer::loss_scale(int64_t number) const {
  const auto& scaler = part(number).scaler;
  return scaler ? std::optional<double>(scaler->current_scale()) : std::nullopt;
}

void Trainer::set_learning_rate_factor(double factor) {
  learning_rate_factor_ = factor;
  for (const auto& scheduled : contents_.parts) {
    if (scheduled) scheduled->schedule.factor = factor;
  }
}

std::optional<std::string> Trainer::non_finite_part() const {
  settle_all();
  for (const auto& checked : contents_.parts) {
    if (!checked) continue;
    const std::optional<std::string> kind = checked->non_finite_kind();
    const std::string& name = checked->plan.name;
    if (kind) return name.empty() ? *kind : *kind + " of " + name;
  }
  return std::nullopt;
}

AveragesInPlace::AveragesInPlace(torch::nn::Module& model, const TrainedParts& parts, bool averaged)
    : eval_(model) {
  for (const auto& part : parts) {
    if (averaged && part && part->average) averages_.emplace_back(*part->average);
  }
}

AveragesInPlace Trainer::averages_in_place(bool wanted) const {
  if (wanted) settle_all();
  return AveragesInPlace(*contents_.plan.model, contents_.parts, wanted);
}

std::vector<std::shared_ptr<DropoutSeed>> add_adapters(
    const std::vector<std::shared_ptr<torch::nn::Module>>& networks, const AdaptersConfig& config) {
  std::vector<std::shared_ptr<DropoutSeed>> dropouts(networks.size());
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) return dropouts;
  std::vector<const torch::nn::Module*> trained;
  for (const auto& network : networks) {
    if (network) trained.push_back(network.get());
  }
  check_lora_targets(trained, lora.targets);
  for (size_t i = 0; i < networks.size(); ++i) {
    if (!networks[i]) continue;
    dropouts[i] = attach_lora(
        *networks[i],
        lora.targets,
        {.rank = lora.rank, .alpha = lora.strength(), .dropout = lora.dropout, .init = lora.init});
    freeze_base(*networks[i], lora.train_bias);
    hold_frozen_weights_as(*networks[i], scalar_type(config.frozen_dtype));
  }
  return dropouts;
}

}  // namespace dalle2
