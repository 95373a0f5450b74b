// SPDX-License-Identifier: MIT
#include <torch/types.h>

#include <cstdio>
#include <string>

#include "base/text.h"
#include "model/random.h"
#include "optim/precision.h"
#include "run/checkpoints/model_weights.h"
#include "run/decoder/decoder_data.h"
#include "run/decoder/decoder_evaluation.h"
#include "run/decoder/decoder_run.h"
#include "run/decoder/memory_budget.h"
#include "run/dry_run.h"
#include "run/shards/stored_arrays.h"
#include "trainer/adapters.h"

namespace dalle2 {
namespace {

/// The CPU computes these steps whatever the device of the run. Both half precisions take the same memory.
MixedPrecision precision_of_step(const DecoderTrainConfig& train) {
  const bool half = train.mixed_precision.value_or(MixedPrecision::no) != MixedPrecision::no;
  return half ? MixedPrecision::bf16 : MixedPrecision::no;
}

/// Loss and gradients of made-up images.
void step(Decoder decoder, int64_t unet, int64_t batch, MixedPrecision precision) {
  const DecoderPlan& plan = decoder->plan();
  const int64_t side = plan.stages.back().image_size;
  const UnetConfig& first = plan.stages.front().unet;
  DecoderInputs inputs;
  inputs.images = at::full({batch, plan.config.channels, side, side}, 0.5);
  if (!plan.config.unconditional)
    inputs.image_embeds = at::ones({batch, first.image_embed_dim.value_or(1)});
  for (const UnetPlan& stage : plan.stages) {
    if (stage.unet.cond_on_text_encodings.value_or(false)) {
      inputs.text_encodings =
          at::ones({batch, stage.unet.max_text_len, stage.unet.text_embed_dim.value_or(1)});
    }
  }
  at::Tensor loss;
  {
    const Autocast autocast(at::kCPU, precision);
    loss = decoder->forward(inputs, unet, make_generator({.purpose = "dry run"}, at::kCPU));
  }
  loss.backward();
}

}  // namespace

DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const ClipEmbedder* clip) {
  const DecoderTrainConfig& train = loaded.config.train;
  Decoder decoder(loaded.plan);
  load_latent_vaes(decoder);
  check_stored_arrays(loaded, decoder, clip);
  if (clip != nullptr) clip->hold_in(*decoder);
  std::vector<std::shared_ptr<torch::nn::Module>> networks;
  std::vector<NetworkMaker> makers;
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    const auto i = static_cast<size_t>(unet - 1);
    makers.push_back(
        [shape = decoder->unet(unet)->config()] { return std::make_shared<UnetImpl>(shape); });
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) decoder->drop_unet(unet);
    networks.push_back(decoder->unet(unet));
  }
  add_adapters(networks, train);
  DryRunPlan plan{.model = decoder.ptr(),
                  .batch_size = loaded.config.data.batch_size,
                  .cuda_graph = train.cuda_graph};
  for (size_t i = 0; i < networks.size(); ++i) {
    const auto unet = static_cast<int64_t>(i) + 1;
    plan.networks.push_back(
        {.label = fmt::format("unet {}", unet),
         .note = fmt::format("{} px", loaded.plan.stages[i].image_size),
         .prefix = fmt::format("unets.{}.", i),
         .module = networks[i],
         .make = makers[i],
         .step = [decoder, unet, precision = precision_of_step(train)](int64_t batch) {
           step(decoder, unet, batch, precision);
         }});
  }
  plan.texts = config_texts(loaded);
  return plan;
}

void dry_run(const LoadedDecoderConfig& loaded, int64_t processes) {
  const TrainDecoderConfig& config = loaded.config;
  ShardData data =
      decoder_data(config, loaded.plan, RankInfo{.world = static_cast<int>(processes)}, at::kCPU);
  data.check_usable("train");
  const auto metrics = make_metrics(loaded, at::kCPU);
  const DecoderClip clip = open_decoder_clip(config, loaded.plan);
  open_clip_of_score(loaded, clip, at::kCPU);
  if (const auto example = data.examples("train", 1)) {
    if (clip.makes_image_embeds)
      naming_sample(*example, [&] { clip.check_pictures(example->images); });
    check_sizes(*example, config.train, loaded.plan);
  }
  DryRunPlan plan = decoder_dry_run_plan(loaded, clip.get());
  plan.data_size = data_size_of(data);
  ShardPosition position;
  const at::Device device = check_start(plan, config.tracker, config.train, position);
  if (const int64_t slices = position.slices_of_run(); slices > 0) data.deal_into(slices);
  print_networks(plan, config.train);
  print_shards(data, config.data, config.train, config.train, processes, config.decoder.channels);
  if (metrics) {
    std::printf("metrics of at most %s after each epoch: %s\n",
                counted(config.evaluate.n_evaluation_samples, "image").c_str(),
                metrics->description().c_str());
  }
  plan.fit_budget = [&](PeakMemory& memory) {
    const MemoryChoice choice = fit_memory_budget(plan, config.train, memory);
    memory = choice.after;
    return describe(choice, plan);
  };
  print_sizes(plan, config.train, device, processes);
}

}  // namespace dalle2
