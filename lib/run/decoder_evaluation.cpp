// SPDX-License-Identifier: MIT
#include "run/decoder_evaluation.h"
#include "run/decoder_data.h"

#include <torch/types.h>

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "model/resize.h"
#include "optim/random.h"
#include "run/row_noise.h"

namespace dalle2 {

DecoderSampleOptions draw_options(const Batch& batch,
                                  const ChunkRange& range,
                                  const DrawSettings& settings,
                                  uint64_t noise_seed,
                                  int64_t first_row) {
  const DecoderInputs inputs = to_inputs(batch, settings.device);
  DecoderSampleOptions options;
  options.image_embeds = inputs.image_embeds;
  options.text_encodings = inputs.text_encodings;
  options.batch_size = batch.size();
  options.cond_scale = settings.cond_scale;
  options.start_at_unet = settings.first_unet;
  options.stop_at_unet = settings.last_unet;
  if (options.start_at_unet > 1) options.image = inputs.images;
  options = chunk_of(options, range);
  options.noise = noise_by_row(static_cast<int64_t>(noise_seed >> 1),
                               first_row + range.begin,
                               range.length,
                               settings.device);
  return options;
}

std::pair<int64_t, int64_t> trained_unets(const LoadedDecoderConfig& loaded) {
  int64_t first = 0, last = 0;
  for (int64_t unet = 1; unet <= std::ssize(loaded.plan.stages); ++unet) {
    const auto& mask = loaded.config.train.unet_training_mask;
    if (mask && !mask->at(static_cast<size_t>(unet - 1))) continue;
    if (first == 0) first = unet;
    last = unet;
  }
  return {first, last};
}

namespace {

std::string cache_folder(const TrainDecoderConfig& config) {
  if (config.evaluate.cache_path) return *config.evaluate.cache_path;
  return (std::filesystem::path(config.tracker.data_path) / "metrics").string();
}

}  // namespace

std::unique_ptr<ImageMetrics> make_metrics(const LoadedDecoderConfig& loaded,
                                           const at::Device& device) {
  const DecoderEvaluateConfig& config = loaded.config.evaluate;
  if (config.is_off()) return nullptr;
  const auto last = static_cast<size_t>(trained_unets(loaded).second - 1);
  auto metrics = std::make_unique<ImageMetrics>(
      config, loaded.plan.stages.at(last).image_size, device, loaded.config.seed);
  const std::string fault = metrics->known().load(cache_folder(loaded.config));
  if (!fault.empty()) {
    log_warning("eval", "the features of real images are computed anew: {}", fault);
  }
  return metrics;
}

void keep_real_features(const TrainDecoderConfig& config, ImageMetrics& metrics) {
  if (!metrics.known().has_news()) return;
  try {
    metrics.known().save(cache_folder(config));
  } catch (const std::exception& error) {
    log_warning(
        "eval",
        "the features of real images are not kept for later runs (/evaluate/cache_path): {}",
        error.what());
  }
}

void show_pairs(const DecoderEvaluation& evaluation, int rank, int ranks, ImageMetrics& metrics) {
  const uint64_t noise_seed = hash_address({.seed = evaluation.seed, .purpose = "evaluate"});
  const auto loader = evaluation.data->loader_for_one(evaluation.split, evaluation.batch_size);
  loader->start_epoch(0);
  int64_t first = 0;
  for (int64_t number = 0; first < evaluation.count; ++number) {
    const std::optional<Batch> batch = loader->next();
    if (!batch) return;
    loader->consumed(*batch);
    const ChunkRange range = {0, std::min(batch->size(), evaluation.count - first)};
    if (number % ranks == rank && range.length > 0) {
      DecoderSampleOptions options =
          draw_options(*batch, range, evaluation.draw, noise_seed, first);
      options.on_step = [&](int64_t unet, size_t step, size_t steps) {
        evaluation.on_step(fmt::format("drawing {} of {} for the metrics: unet {}, step {}/{}",
                                       first + range.length,
                                       evaluation.count,
                                       unet - 1,
                                       step + 1,
                                       steps));
      };
      const at::Tensor drawn = evaluation.sample(options).cpu().clamp(0, 1);
      const at::Tensor real = resize_image_to(
          batch->images.narrow(0, 0, range.length), drawn.size(-1), std::make_pair(0.0, 1.0));
      metrics.update(at::arange(first, first + range.length, at::kLong), real, drawn);
    }
    first += batch->size();
  }
}

}  // namespace dalle2
