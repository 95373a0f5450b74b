// SPDX-License-Identifier: MIT
#include "trainer/decoder_trainer.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

constexpr const char* kMemoryBudgetKey = "memory_budget";

/// Drops the unets that are not trained. @return the plan of the others
ModelPlan plan_parts(Decoder decoder, const DecoderTrainConfig& config) {
  const int64_t count = decoder->num_unets();
  ModelPlan plan{.model = decoder.ptr(),
                 .model_name = "decoder",
                 .part_noun = "unet",
                 .untrained_reason = "/train/unet_training_mask takes it out",
                 .records_passes = config.cuda_graph,
                 .version = to_text(decoder->plan().config.written_by)};
  for (int64_t number = 1; number <= count; ++number) {
    const auto i = static_cast<size_t>(number - 1);
    PartPlan part{.name = fmt::format("unet {}", number), .prefix = fmt::format("unets.{}.", i)};
    if (config.unet_training_mask && !config.unet_training_mask->at(i)) {
      part.make_network = [shape = decoder->unet(number)->config()] {
        return std::make_shared<UnetImpl>(shape);
      };
      decoder->drop_unet(number);
    } else {
      part.network = decoder->unet(number);
      part.options = part_options(config, i);
    }
    plan.parts.push_back(std::move(part));
  }
  return plan;
}

int64_t batch_of(const DecoderInputs& inputs) {
  return samples_of(inputs.images, "images", "[B, C, H, W]", 4);
}

}  // namespace

DecoderTrainer::DecoderTrainer(Decoder decoder,
                               const DecoderTrainConfig& config,
                               const at::Device& device)
    : Trainer(plan_parts(decoder, config), config, device),
      decoder_(std::move(decoder)),
      memory_budget_gib_(config.memory_budget_gib) {}

at::Tensor DecoderTrainer::step(const DecoderInputs& inputs,
                                int64_t unet_number,
                                at::Generator generator,
                                const BatchShare& share) {
  part(unet_number);
  const DecoderStepNoise draws =
      decoder_->draw(batch_of(inputs), unet_number, std::move(generator));
  return step(inputs, unet_number, draws, share);
}

at::Tensor DecoderTrainer::step(const DecoderInputs& inputs,
                                int64_t unet_number,
                                const DecoderStepNoise& draws,
                                const BatchShare& share) {
  TrainedPart& unet = part(unet_number);
  const int64_t batch = batch_of(inputs);
  const DecoderInputs local = on_device(inputs, device());
  const at::Tensor total = unet.run_passes(batch, share, [&](const Pass& pass) {
    const DecoderExamples examples = unet.prepare(pass, [&] {
      return decoder_->prepare(
          chunk_of(local, pass.range), unet_number, chunk_of(draws, pass.range));
    });
    std::optional<DropoutSeed> seed;
    if (unet.dropout) seed = {draws.dropout_seed, pass.range.begin};
    const auto run = [&](const DecoderExamples& given, const DropoutSeed& own) {
      if (unet.dropout) *unet.dropout = own;
      const at::Tensor loss =
          unet.forward(pass, [&] { return decoder_->loss(given, unet_number); });
      if (pass.is_last) unet.begin_exchange();
      unet.backward(pass, loss);
      return loss.detach();
    };
    return unet.run_pass(
        pass, examples, seed, examples.self_condition ? kSelfConditioned : "", run);
  });
  if (share.is_last) unet.finish_exchange();
  add_to(unet.loss, total);
  return total;
}

at::Tensor DecoderTrainer::evaluate(const DecoderInputs& inputs,
                                    int64_t unet_number,
                                    at::Generator generator) {
  const TrainedPart& unet = part(unet_number);
  const EvalScope eval(*decoder_);
  const int64_t batch = batch_of(inputs);
  const DecoderStepNoise draws = decoder_->draw(batch, unet_number, std::move(generator));
  const DecoderInputs local = on_device(inputs, device());
  return unet.evaluate(batch, [&](const ChunkRange& range) {
    return decoder_->loss(chunk_of(local, range), unet_number, chunk_of(draws, range));
  });
}

at::Tensor DecoderTrainer::sample(const DecoderSampleOptions& options, bool use_non_ema) {
  const int64_t batch = sample_batch(options);
  if (batch == 0)
    throw ConfigError("sample: expected a request for at least one image, got a batch of 0");
  return sample_in_chunks(options, batch, use_non_ema, std::nullopt, [&](const auto& chunk) {
    return decoder_->sample(chunk);
  });
}

void DecoderTrainer::add_choices(Dict& own) const {
  if (!memory_budget_gib_) return;
  List levels;  // one a unet; 0 of one that is not trained
  for (int64_t unet = 1; unet <= num_unets(); ++unet)
    levels.items.emplace_back(is_trained(unet) ? decoder_->unet(unet)->recomputed_levels() : 0);
  Dict choice;
  choice.set("gib", *memory_budget_gib_);
  choice.set("levels", std::move(levels));
  own.set(kMemoryBudgetKey, std::move(choice));
}

void DecoderTrainer::take_choices(const Cursor& own) {
  const std::optional<Cursor> choice = own.find(kMemoryBudgetKey);
  if (!choice || choice->at("gib").as_double() != memory_budget_gib_) return;
  for (const int64_t number : trained_parts()) {
    UnetImpl& unet = *decoder_->unet(number);
    const Cursor saved = choice->at("levels").at(static_cast<size_t>(number - 1));
    const int64_t levels = saved.as_int(), all = unet.recomputable_levels();
    if (levels < 0 || levels > all)
      throw DataError("{}: expected 0 to {}, got {}", saved.where(), all, levels);
    if (levels != unet.recomputed_levels()) {
      log_info(
          "model",
          "{}: the backward pass recomputes {} of {} levels, as the run has so far; this start would "
          "recompute {}. It chooses again if you change /train/memory_budget_gib",
          part_name(number),
          levels,
          all,
          unet.recomputed_levels());
    }
    unet.recompute_levels(levels);
  }
}

void DecoderTrainer::list_state(TrainState& state) const {
  const auto count = static_cast<size_t>(num_unets());
  state.model("model");
  state.version("version");
  state.steps("steps");
  state.lora("lora");
  state.extras();
  for (size_t i = 0; i < count; ++i) {
    state.optimizer(fmt::format("optim{}", i), i);
    state.schedule(fmt::format("sched{}", i), i);
  }
  state.averages({.many_parts = true});
  state.post_hoc_averages("post_hoc_ema");
  for (size_t i = 0; i < count; ++i) state.scaler(fmt::format("scaler{}", i), i);
  state.skipped("skipped_updates", /*flat=*/false);
}

}  // namespace dalle2
