// SPDX-License-Identifier: MIT
#include "trainer/decoder_trainer.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "diffusion/eval_scope.h"
#include "trainer/chunks.h"
#include "trainer/decoder_lora.h"
#include "trainer/decoder_trainer_state.h"

namespace dalle2 {
namespace {

// Above it the reference refuses to start: such a run diverges.
constexpr double kLargestLearningRate = 1e-2;

template <class T>
void check_count(const char* key, const OneOrMany<T>& values, int64_t num_unets) {
  if (!values.is_one() && static_cast<int64_t>(values.size()) != num_unets) {
    throw ConfigError(
        "/train/{}: expected one value or an array of {}, one for each unet; got {} values",
        key,
        num_unets,
        values.size());
  }
}

void check_config(const DecoderTrainConfig& config, int64_t num_unets) {
  check_count("lr", config.lr, num_unets);
  check_count("wd", config.wd, num_unets);
  check_count("eps", config.eps, num_unets);
  check_count("max_grad_norm", config.max_grad_norm, num_unets);
  if (config.warmup_steps) check_count("warmup_steps", *config.warmup_steps, num_unets);
  if (config.cosine_decay_max_steps) {
    check_count("cosine_decay_max_steps", *config.cosine_decay_max_steps, num_unets);
  }
  for (const double lr : config.lr.values()) {
    if (lr > kLargestLearningRate) {
      throw ConfigError(
          "/train/lr: expected at most {}, got {}; 1e-4 is a good start, 5e-4 the most that trains "
          "well",
          kLargestLearningRate,
          lr);
    }
  }
  for (const double norm : config.max_grad_norm.values()) {
    if (!(norm > 0.0)) {
      throw ConfigError("/train/max_grad_norm: expected a number above 0, got {}", norm);
    }
  }
  if (config.betas.size() != 2) {
    throw ConfigError("/train/betas: expected two numbers, got {}", config.betas.size());
  }
  const auto& mask = config.unet_training_mask;
  if (mask && static_cast<int64_t>(mask->size()) != num_unets) {
    throw ConfigError("/train/unet_training_mask: expected {} entries, one for each unet, got {}",
                      num_unets,
                      mask->size());
  }
}

OptimizerOptions optimizer_options(const DecoderTrainConfig& config, size_t i) {
  OptimizerOptions options;
  options.weight_decay = config.wd.at(i);
  options.beta1 = config.betas[0];
  options.beta2 = config.betas[1];
  options.eps = config.eps.at(i);
  options.group_wd_params = config.group_wd_params;
  return options;
}

LrSchedule lr_schedule(const DecoderTrainConfig& config, size_t i) {
  const auto steps_of = [&](const auto& steps) {
    return steps ? steps->at(i) : std::optional<int64_t>();
  };
  return LrSchedule(
      config.lr.at(i), steps_of(config.warmup_steps), steps_of(config.cosine_decay_max_steps));
}

at::Tensor on(const at::Device& device, const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
}

DecoderInputs on(const at::Device& device, const DecoderInputs& inputs) {
  return {on(device, inputs.images),
          on(device, inputs.image_embeds),
          on(device, inputs.text_encodings)};
}

int64_t batch_of(const DecoderInputs& inputs) {
  if (!inputs.images.defined() || inputs.images.dim() != 4 || inputs.images.size(0) == 0) {
    throw DataError("images: expected a batch [B, C, H, W] of at least one, got {}",
                    inputs.images.defined() ? c10::str(inputs.images.sizes()) : "nothing");
  }
  return inputs.images.size(0);
}

/// The unet, if it is there and trained.
TrainedUnet& trained_unet(const TrainedUnets& unets, int64_t unet_number) {
  const auto count = static_cast<int64_t>(unets.size());
  if (unet_number < 1 || unet_number > count) {
    throw ConfigError("unet {}: this decoder has unets 1 to {}", unet_number, count);
  }
  const auto& unet = unets[static_cast<size_t>(unet_number - 1)];
  if (!unet) {
    throw ConfigError("unet {} is not trained: /train/unet_training_mask takes it out",
                      unet_number);
  }
  return *unet;
}

}  // namespace

AveragesInPlace::AveragesInPlace(Decoder decoder, const TrainedUnets& unets)
    : decoder_(std::move(decoder)), live_(unets.size()) {
  // All networks before the first swap: making one may fail, and nothing would be put back.
  std::vector<std::shared_ptr<UnetImpl>> averaged(unets.size());
  for (size_t i = 0; i < unets.size(); ++i) {
    if (unets[i] && unets[i]->average) {
      averaged[i] = unets[i]->averaged_unet();
    }
  }
  for (size_t i = 0; i < unets.size(); ++i) {
    if (averaged[i]) {
      live_[i] = decoder_->swap_unet(static_cast<int64_t>(i) + 1, averaged[i]);
    }
  }
}

AveragesInPlace::~AveragesInPlace() {
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i]) {
      decoder_->swap_unet(static_cast<int64_t>(i) + 1, live_[i]);
    }
  }
}

DecoderTrainer::DecoderTrainer(Decoder decoder,
                               const DecoderTrainConfig& config,
                               const at::Device& device)
    : state_(new DecoderTrainerState{std::move(decoder),
                                     device,
                                     config.use_ema,
                                     config.ema.kind,
                                     config.max_batch_size,
                                     {},
                                     {}}) {
  const int64_t count = state_->decoder->num_unets();
  check_config(config, count);
  state_->precision =
      choose_precision(config.mixed_precision, config.amp, half_precision_support(device));
  state_->settles_at_once = device.is_cpu() || config.update_model_with_ema_every.has_value();
  state_->steps.assign(static_cast<size_t>(count), 0);
  for (int64_t number = 1; number <= count; ++number) {
    const auto i = static_cast<size_t>(number - 1);
    if (config.unet_training_mask && !config.unet_training_mask->at(i)) {
      state_->decoder->drop_unet(number);
    }
  }
  const auto dropouts = add_adapters(state_->decoder, config);
  if (config.lora.rank > 0) state_->lora = lora_info(config.lora);
  state_->decoder->to(device);
  state_->decoder->train();
  for (int64_t number = 1; number <= count; ++number) {
    const auto i = static_cast<size_t>(number - 1);
    std::unique_ptr<TrainedUnet> trained;
    if (const auto unet = state_->decoder->unet(number)) {
      trained = std::make_unique<TrainedUnet>(
          unet, optimizer_options(config, i), lr_schedule(config, i), config.max_grad_norm.at(i));
      trained->dropout = dropouts[i];
      if (state_->precision.precision == MixedPrecision::fp16) trained->scaler.emplace(device);
      if (config.use_ema) {
        trained->average = make_average(
            *unet,
            [config = unet->config()] { return std::make_shared<UnetImpl>(config); },
            trained->parameters,
            config.ema,
            ema_options(config));
      }
      if (config.post_hoc_ema.save_every_n_steps) {
        trained->post_hoc =
            std::make_unique<PostHocAverages>(trained->parameters, config.post_hoc_ema);
      }
    }
    state_->unets.push_back(std::move(trained));
  }
}

DecoderTrainer::~DecoderTrainer() = default;

at::Tensor DecoderTrainer::step(const DecoderInputs& inputs,
                                int64_t unet_number,
                                at::Generator generator,
                                std::optional<int64_t> max_batch_size,
                                double weight) {
  trained_unet(state_->unets, unet_number);
  const DecoderStepNoise draws =
      state_->decoder->draw(batch_of(inputs), unet_number, std::move(generator));
  return step(inputs, unet_number, draws, max_batch_size, weight);
}

at::Tensor DecoderTrainer::step(const DecoderInputs& inputs,
                                int64_t unet_number,
                                const DecoderStepNoise& draws,
                                std::optional<int64_t> max_batch_size,
                                double weight) {
  TrainedUnet& unet = trained_unet(state_->unets, unet_number);
  const int64_t batch = batch_of(inputs);
  const DecoderInputs local = on(state_->device, inputs);
  return unet.accumulate(
      state_->pass_settings(max_batch_size), batch, weight, [&](const ChunkRange& range) {
        if (unet.dropout) *unet.dropout = {draws.dropout_seed, range.begin};
        return state_->decoder->loss(chunk_of(local, range), unet_number, chunk_of(draws, range));
      });
}

StepResult DecoderTrainer::evaluate(const DecoderInputs& inputs,
                                    int64_t unet_number,
                                    at::Generator generator,
                                    std::optional<int64_t> max_batch_size) {
  trained_unet(state_->unets, unet_number);
  const EvalScope eval(*state_->decoder);
  const int64_t batch = batch_of(inputs);
  const DecoderStepNoise draws = state_->decoder->draw(batch, unet_number, std::move(generator));
  const DecoderInputs local = on(state_->device, inputs);
  std::vector<at::Tensor> lowres_images;
  const auto loss_of = [&](const ChunkRange& range) {
    at::Tensor lowres_image;
    const at::Tensor loss = state_->decoder->loss(
        chunk_of(local, range), unet_number, chunk_of(draws, range), &lowres_image);
    if (lowres_image.defined()) lowres_images.push_back(lowres_image);
    return loss;
  };
  const at::Tensor total =
      evaluate_in_chunks(state_->pass_settings(max_batch_size), batch, loss_of);
  return {total, lowres_images.empty() ? at::Tensor() : at::cat(lowres_images)};
}

at::Tensor DecoderTrainer::sample(const DecoderSampleOptions& options,
                                  bool use_non_ema,
                                  std::optional<int64_t> max_batch_size) {
  D2_CHECK(!options.one_unet_in_gpu,
           "unets of a trainer stay where they are: their weights are views");
  state_->settle_all();
  const torch::NoGradGuard no_grad;
  const EvalScope eval(*state_->decoder);
  std::optional<AveragesInPlace> averages;
  if (!use_non_ema) {
    averages.emplace(state_->decoder, state_->unets);
  }
  std::vector<at::Tensor> images;
  for (const ChunkRange& range : chunk_ranges(sample_batch(options), max_batch_size)) {
    DecoderSampleOptions chunk = chunk_of(options, range);
    for (at::Tensor* tensor : {&chunk.image_embeds,
                               &chunk.text_encodings,
                               &chunk.image,
                               &chunk.inpaint_image,
                               &chunk.inpaint_mask}) {
      *tensor = on(state_->device, *tensor);
    }
    images.push_back(state_->decoder->sample(chunk));
  }
  if (images.empty()) {
    throw ConfigError("sample: expected at least one image to be asked for, got a batch of 0");
  }
  return at::cat(images);
}

void DecoderTrainer::set_stage_times(StageTimes* times) {
  state_->stage_times = times;
}

int64_t DecoderTrainer::num_unets() const {
  return static_cast<int64_t>(state_->unets.size());
}

bool DecoderTrainer::is_trained(int64_t unet_number) const {
  return unet_number >= 1 && unet_number <= num_unets() &&
         state_->unets[static_cast<size_t>(unet_number - 1)] != nullptr;
}

int64_t DecoderTrainer::steps(int64_t unet_number, bool settled) const {
  const auto i = static_cast<size_t>(unet_number - 1);
  const int64_t& steps = state_->steps.at(i);
  if (settled) state_->settle(i);
  const bool pending = state_->unets[i] && state_->unets[i]->outcome.pending();
  return steps + (pending ? 1 : 0);
}

double DecoderTrainer::learning_rate(int64_t unet_number) const {
  return trained_unet(state_->unets, unet_number).schedule.at(steps(unet_number));
}

std::optional<double> DecoderTrainer::ema_decay(int64_t unet_number) const {
  const TrainedUnet& unet = trained_unet(state_->unets, unet_number);
  state_->settle_all();
  return unet.average ? std::optional<double>(unet.average->decay()) : std::nullopt;
}

void DecoderTrainer::check_trained(int64_t unet_number) const {
  trained_unet(state_->unets, unet_number);
}

at::Tensor DecoderTrainer::last_grad_norm(int64_t unet_number) const {
  return trained_unet(state_->unets, unet_number).grad_norm;
}

bool DecoderTrainer::uses_ema() const {
  return state_->use_ema;
}

Decoder DecoderTrainer::decoder() const {
  return state_->decoder;
}

std::shared_ptr<UnetImpl> DecoderTrainer::ema_unet(int64_t unet_number) const {
  if (!is_trained(unet_number)) {
    return nullptr;
  }
  state_->settle_all();
  const TrainedUnet& unet = *state_->unets[static_cast<size_t>(unet_number - 1)];
  return unet.average ? unet.averaged_unet() : nullptr;
}

}  // namespace dalle2
