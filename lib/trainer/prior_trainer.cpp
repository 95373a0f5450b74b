// SPDX-License-Identifier: MIT
#include "trainer/prior_trainer.h"

#include <torch/torch.h>

#include <limits>
#include <utility>

#include "base/error.h"
#include "diffusion/eval_scope.h"
#include "optim/finite.h"
#include "optim/trained_parameters.h"
#include "trainer/adapters.h"
#include "trainer/prior_trainer_state.h"

namespace dalle2 {
namespace {

at::Tensor on(const at::Device& device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
}

TextEmbedding on(const at::Device& device, const TextEmbedding& text) {
  return {on(device, text.embeds), on(device, text.encodings)};
}

int64_t batch_of(const PriorInputs& inputs) {
  const at::Tensor& images = inputs.image_embeds;
  if (!images.defined() || images.dim() != 2 || images.size(0) == 0) {
    throw DataError("image embeddings: expected a batch [B, D] of at least one, got {}",
                    images.defined() ? c10::str(images.sizes()) : "nothing");
  }
  return images.size(0);
}

OptimizerOptions optimizer_options(const PriorTrainConfig& config) {
  if (config.betas.size() != 2) {
    throw ConfigError("/train/betas: expected two numbers, got {}", config.betas.size());
  }
  OptimizerOptions options;
  options.weight_decay = config.wd;
  options.beta1 = config.betas[0];
  options.beta2 = config.betas[1];
  options.eps = config.eps;
  options.group_wd_params = config.group_wd_params;
  return options;
}

double clip_norm(const PriorTrainConfig& config) {
  const double norm = config.max_grad_norm.value_or(std::numeric_limits<double>::infinity());
  if (!(norm > 0.0)) {
    throw ConfigError("/train/max_grad_norm: expected a number above 0 or null, got {}", norm);
  }
  return norm;
}

/// All parameters, the frozen rotary frequencies too: the reference's optimizer counts them.
std::vector<std::string> optimized_names(const torch::nn::Module& network, bool adapters) {
  if (adapters) return trained_parameters(network);
  std::vector<std::string> names;
  for (const auto& item : network.named_parameters()) names.push_back(item.key());
  return names;
}

}  // namespace

PriorTrainer::PriorTrainer(DiffusionPrior prior,
                           const PriorTrainConfig& config,
                           const at::Device& device)
    : state_(new PriorTrainerState{std::move(prior), device, config}) {
  PriorTrainerState& state = *state_;
  state.precision =
      choose_precision(config.mixed_precision, config.amp, half_precision_support(device));
  state.settles_at_once = device.is_cpu() || config.update_model_with_ema_every.has_value();
  const auto net = state.prior->net();
  std::shared_ptr<LoraDropout> dropout;
  if (config.lora.rank > 0) {
    check_lora_targets({net.get()}, config.lora.targets);
    dropout = add_adapters(*net, config.lora, config.frozen_dtype, config.trainable_dtype);
    state.lora = lora_info(config.lora);
  }
  state.prior->to(device);
  state.prior->train();
  state.trained = std::make_unique<TrainedNetwork>(
      *net,
      optimized_names(*net, config.lora.rank > 0),
      optimizer_options(config),
      LrSchedule(config.lr, config.warmup_steps, config.cosine_decay_max_steps),
      clip_norm(config));
  state.trained->dropout = std::move(dropout);
  if (state.precision.precision == MixedPrecision::fp16) state.trained->scaler.emplace(device);
  if (config.use_ema) {
    state.trained->average = make_average(
        *net,
        [shape = net->config()] { return std::make_shared<PriorNetworkImpl>(shape); },
        state.trained->parameters,
        config.ema,
        ema_options(config));
  }
}

PriorTrainer::~PriorTrainer() = default;

at::Tensor PriorTrainer::step(const PriorInputs& inputs,
                              at::Generator generator,
                              std::optional<int64_t> max_batch_size,
                              double weight) {
  const PriorStepNoise draws = state_->prior->draw(batch_of(inputs), std::move(generator));
  return step(inputs, draws, max_batch_size, weight);
}

at::Tensor PriorTrainer::step(const PriorInputs& inputs,
                              const PriorStepNoise& draws,
                              std::optional<int64_t> max_batch_size,
                              double weight) {
  TrainedNetwork& trained = *state_->trained;
  const int64_t batch = batch_of(inputs);
  const PriorInputs local = {on(state_->device, inputs.image_embeds),
                             on(state_->device, inputs.text)};
  return trained.accumulate(
      state_->pass_settings(max_batch_size), batch, weight, [&](const ChunkRange& range) {
        if (trained.dropout) *trained.dropout = {draws.dropout.seed, range.begin};
        return state_->prior->loss(chunk_of(local, range), chunk_of(draws, range));
      });
}

at::Tensor PriorTrainer::evaluate(const PriorInputs& inputs,
                                  at::Generator generator,
                                  bool averaged,
                                  std::optional<int64_t> max_batch_size) {
  const int64_t batch = batch_of(inputs);
  state_->settle();
  const EvalScope eval(*state_->prior);
  std::optional<AverageInPlace> average;
  if (averaged) average.emplace(*state_);
  const PriorStepNoise draws = state_->prior->draw(batch, std::move(generator));
  const PriorInputs local = {on(state_->device, inputs.image_embeds),
                             on(state_->device, inputs.text)};
  return evaluate_in_chunks(
      state_->pass_settings(max_batch_size), batch, [&](const ChunkRange& range) {
        return state_->prior->loss(chunk_of(local, range), chunk_of(draws, range));
      });
}

void PriorTrainer::update() {
  PriorTrainerState& state = *state_;
  timed(state.stage_times, Stage::kOptimizer, [&] {
    state.settle();  // the update before
    state.trained->make_update(state.trained->schedule.at(state.steps));
    if (state.settles_at_once) state.settle();
  });
}

void PriorTrainer::set_stage_times(StageTimes* times) {
  state_->stage_times = times;
}

int64_t PriorTrainer::steps(bool settled) const {
  if (settled) state_->settle();
  return state_->steps + (state_->trained->outcome.pending() ? 1 : 0);
}

double PriorTrainer::learning_rate() const {
  return state_->trained->schedule.at(steps());
}

void PriorTrainer::set_learning_rate_factor(double factor) {
  state_->trained->schedule.set_factor(factor);
}

std::optional<double> PriorTrainer::ema_decay() const {
  state_->settle();
  const auto& average = state_->trained->average;
  return average ? std::optional<double>(average->decay()) : std::nullopt;
}

at::Tensor PriorTrainer::last_grad_norm() const {
  return state_->trained->grad_norm;
}

SkippedUpdates PriorTrainer::skipped_updates(bool settled) const {
  if (settled) state_->settle();
  return state_->trained->skipped;
}

std::optional<double> PriorTrainer::loss_scale() const {
  const auto& scaler = state_->trained->scaler;
  return scaler ? std::optional<double>(scaler->current_scale()) : std::nullopt;
}

const PrecisionChoice& PriorTrainer::precision() const {
  return state_->precision;
}

std::optional<std::string> PriorTrainer::non_finite_part() const {
  state_->settle();
  const TrainedNetwork& trained = *state_->trained;
  if (!all_finite(trained.parameters.values())) return "weights";
  if (trained.average && !trained.average->is_finite()) return "averaged weights";
  return std::nullopt;
}

bool PriorTrainer::uses_ema() const {
  return state_->config.use_ema;
}

DiffusionPrior PriorTrainer::prior() const {
  return state_->prior;
}

std::shared_ptr<PriorNetworkImpl> PriorTrainer::ema_net() const {
  state_->settle();
  return state_->trained->average ? state_->averaged_net() : nullptr;
}

}  // namespace dalle2
