// SPDX-License-Identifier: MIT
#include "run/dry_run.h"

#include <torch/types.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "base/process_memory.h"
#include "base/text.h"
#include "optim/random.h"
#include "run/decoder_model.h"
#include "run/loaders.h"
#include "tracker/tracker.h"
#include "trainer/decoder_lora.h"

namespace dalle2 {
namespace {

constexpr int64_t kBytesPerValue = 4;

/// Peak resident memory of a forward and backward pass over `batch` synthetic images.
uint64_t peak_of_step(Decoder decoder, const DecoderPlan& plan, int64_t unet, int64_t batch) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets VmHWM
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
  decoder->forward(inputs, unet, make_generator({.purpose = "dry run"}, at::kCPU)).backward();
  return process_memory("VmHWM");
}

/// Weights, then gradients, two moments and the average of what is trained, what is being saved of
/// all that, and one step's activations: two steps on synthetic images, of one and of two samples,
/// tell what a sample takes.
uint64_t estimate_peak_memory(Decoder decoder, const LoadedDecoderConfig& loaded) {
  const ParameterBytes parameters = parameter_bytes(*decoder);
  const uint64_t before = process_memory("VmRSS");
  const int64_t batch =
      std::min(loaded.config.data.batch_size,
               loaded.config.train.max_batch_size.value_or(loaded.config.data.batch_size));
  uint64_t activations = 0;
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    const uint64_t one = peak_of_step(decoder, loaded.plan, unet, 1);
    const uint64_t two = peak_of_step(decoder, loaded.plan, unet, 2);
    const uint64_t per_sample =
        std::max<uint64_t>(two > one ? two - one : 0, (one > before ? one - before : 0) / 4);
    activations = std::max(activations, per_sample * static_cast<uint64_t>(batch));
    decoder->zero_grad();
  }
  const int64_t averages = loaded.config.train.use_ema ? 1 : 0;
  // Saving in the background holds a checkpoint and a model file besides.
  const int64_t saves = loaded.config.train.async_save ? 2 : 1;
  const int64_t bytes = saves * (parameters.all + (3 + averages) * parameters.trained);
  return before + static_cast<uint64_t>(bytes) + activations;
}

void print_steps(const TrainDecoderConfig& config, int64_t train_samples) {
  const bool draws_without_end = config.data.resample_train && train_samples > 0;
  if (draws_without_end && !config.train.epoch_samples) {
    std::printf("samples per epoch: without end (resample_train without /train/epoch_samples)\n");
    return;
  }
  const int64_t asked = config.train.epoch_samples.value_or(train_samples);
  const int64_t epoch_samples = draws_without_end ? asked : std::min(train_samples, asked);
  const int64_t per_step = config.data.batch_size * config.train.grad_accum_every;
  const int64_t steps = (epoch_samples + per_step - 1) / per_step;
  std::printf("samples per epoch: %s\nsteps: %s per epoch, %s in %s\n",
              with_commas(epoch_samples).c_str(),
              with_commas(steps).c_str(),
              with_commas(steps * config.train.epochs).c_str(),
              counted(config.train.epochs, "epoch").c_str());
}

}  // namespace

void dry_run(const LoadedDecoderConfig& loaded) {
  const TrainDecoderConfig& config = loaded.config;
  choose_device(config.train.device, "/train/device", /*allow_fallback=*/true);
  const Tracker checks_the_paths(config.tracker, decoder_placeholders(), /*dummy=*/false);
  const DecoderData data(config, loaded.plan, RankInfo{}, at::kCPU);
  data.check_usable("train");
  Decoder decoder(loaded.plan);

  add_adapters(decoder, config.train);
  const ParameterCount all = count_parameters(*decoder);
  const ParameterBytes bytes = parameter_bytes(*decoder);
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) {
    std::printf("unet %ld: %s parameters, %ld px\n",
                static_cast<long>(unet - 1),
                with_commas(count_parameters(*decoder->unet(unet)).total).c_str(),
                static_cast<long>(loaded.plan.stages[static_cast<size_t>(unet - 1)].image_size));
  }
  std::printf("all unets: %s parameters\n", with_commas(all.total).c_str());
  if (config.train.lora.rank > 0) {
    std::printf("adapters of rank %ld: %s parameters are trained, the others are frozen\n",
                static_cast<long>(config.train.lora.rank),
                with_commas(all.training).c_str());
  }
  int64_t train_samples = 0;
  for (const char* split : {"train", "val", "test"}) {
    const int64_t samples = data.count_samples(split);
    if (std::string(split) == "train") train_samples = samples;
    std::printf("%s: %s in %s\n",
                split,
                counted(samples, "sample").c_str(),
                counted(data.num_shards(split), "shard").c_str());
  }
  print_steps(config, train_samples);
  // model, two moments, and with averages their copies: ema_pytorch saves the live one again
  const int64_t averages = config.train.ema.kind == EmaKind::diffusers ? 1 : 2;
  const int64_t copies = 2 + (config.train.use_ema ? averages : 0);
  std::printf("checkpoint: about %s, model file: about %s\n",
              human_bytes(static_cast<uint64_t>(bytes.all + bytes.trained * copies)).c_str(),
              human_bytes(static_cast<uint64_t>(all.total * kBytesPerValue)).c_str());
  std::printf("peak memory: about %s\n",
              human_bytes(estimate_peak_memory(decoder, loaded)).c_str());
  std::printf("nothing was trained or written (--dry-run)\n");
}

}  // namespace dalle2
