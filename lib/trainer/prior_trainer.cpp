// SPDX-License-Identifier: MIT
#include "trainer/prior_trainer.h"

#include <torch/torch.h>

#include <utility>

#include "checkpoint/module_state.h"
#include "model/clip/clip_encoder.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

constexpr const char* kNet = "net.";

ModelPlan plan_parts(const DiffusionPrior& prior, const PriorTrainConfig& config) {
  PartPlan part{.prefix = kNet, .network = prior->net()};
  part.options = part_options(config, 0);
  part.counts_frozen = true;
  for (const auto& child : prior->named_children()) {
    if (child.key() == kFrozenClipName) part.numbered_before = child.value()->parameters();
  }
  return {.model = prior.ptr(),
          .model_name = TrainPriorConfig::kKind,
          .parts = {std::move(part)},
          .records_passes = config.cuda_graph,
          .version = to_text(prior->plan().config.written_by)};
}

struct PriorExamples {
  PriorInputs inputs;
  PriorStepNoise draws;

  void tensors(const auto& f) {
    inputs.tensors(f);
    draws.tensors(f);
  }
};

int64_t batch_of(const PriorInputs& inputs) {
  return samples_of(inputs.image_embeds, "image embeddings", "[B, D]", 2);
}

}  // namespace

PriorTrainer::PriorTrainer(DiffusionPrior prior,
                           const PriorTrainConfig& config,
                           const at::Device& device)
    : Trainer(plan_parts(prior, config), config, device), prior_(std::move(prior)) {}

at::Tensor PriorTrainer::step(const PriorInputs& inputs,
                              at::Generator generator,
                              const BatchShare& share) {
  const PriorStepNoise draws = prior_->draw(batch_of(inputs), std::move(generator));
  return step(inputs, draws, share);
}

at::Tensor PriorTrainer::step(const PriorInputs& inputs,
                              const PriorStepNoise& draws,
                              const BatchShare& share) {
  TrainedPart& net = part(1);
  const PriorNetworkConfig& shape = prior_->net()->config();
  const bool drops = net.dropout || shape.attn_dropout > 0 || shape.ff_dropout > 0;
  const bool sees_itself = prior_->plan().config.net.self_cond && draws.self_condition;
  const int64_t batch = batch_of(inputs);
  const PriorInputs local = on_device(inputs, device());
  const at::Tensor total = net.run_passes(batch, share, [&](const Pass& pass) {
    const PriorExamples examples{chunk_of(local, pass.range), chunk_of(draws, pass.range)};
    std::optional<DropoutSeed> seed;
    if (drops) seed = examples.draws.dropout;
    const auto run = [&](PriorExamples given, const DropoutSeed& own) {
      if (drops) given.draws.dropout = own;
      if (net.dropout) *net.dropout = own;
      const at::Tensor loss =
          net.forward(pass, [&] { return prior_->loss(given.inputs, given.draws); });
      if (pass.is_last) net.begin_exchange();
      net.backward(pass, loss);
      return loss.detach();
    };
    return net.run_pass(pass, examples, seed, sees_itself ? kSelfConditioned : "", run);
  });
  if (share.is_last) net.finish_exchange();
  add_to(net.loss, total);
  return total;
}

at::Tensor PriorTrainer::evaluate(const PriorInputs& inputs,
                                  at::Generator generator,
                                  bool averaged) {
  const int64_t batch = batch_of(inputs);
  const AveragesInPlace eval = averages_in_place(averaged);
  const PriorStepNoise draws = prior_->draw(batch, std::move(generator));
  const PriorInputs local = on_device(inputs, device());
  return part(1).evaluate(batch, [&](const ChunkRange& range) {
    return prior_->loss(chunk_of(local, range), chunk_of(draws, range));
  });
}

at::Tensor PriorTrainer::p_sample_loop(const PriorSampleOptions& options, bool use_non_ema) {
  const std::optional<int64_t> most = part(1).settings.max_batch_size;
  const int64_t texts = samples_of(options.text.embeds, "text embeddings", "[B, D]", 2);
  return sample_in_chunks(options, texts, use_non_ema, most, [&](const auto& chunk) {
    return prior_->p_sample_loop(chunk);
  });
}

void PriorTrainer::list_state(TrainState& state) const {
  state.optimizer("optimizer", 0);
  state.schedule("scheduler", 0);
  Value warmup;
  if (const auto& period = part(1).schedule.warmup_steps) {
    warmup = Dict{{{"warmup_period", *period}, {"last_step", steps()}}};
  }
  state.note("warmup_scheduler", std::move(warmup));
  state.model("model");
  state.version("version");
  state.steps("step");
  state.extras();
  AverageLayout averages{.many_parts = false, .network_prefix = kNet, .model_key = "ema_model"};
  if (!uses_lora()) {  // with adapters an average has only what is trained
    averages.rest = [this] {
      StateDict rest;
      for (const auto& [name, tensor] : state_dict(*prior_)) {
        if (!name.starts_with(kNet)) rest.emplace_back(name, tensor);
      }
      return rest;
    };
  }
  state.averages(averages);
  state.lora("lora");
  state.post_hoc_averages("post_hoc_ema");
  state.scaler("scaler", 0);
  state.skipped("skipped_updates", /*flat=*/true);
}

}  // namespace dalle2
