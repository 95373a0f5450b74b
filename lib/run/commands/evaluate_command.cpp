// SPDX-License-Identifier: MIT
// dalle2-train evaluate: metrics of a checkpoint as one JSON object.
#include <torch/types.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/convert.h"
#include "data/image_folder.h"
#include "data/prior_dataset.h"
#include "metrics/embedding_similarities.h"
#include "optim/random.h"
#include "run/commands.h"
#include "run/commands/evaluate_kinds.h"
#include "run/decoder_data.h"
#include "run/decoder_evaluation.h"
#include "run/device.h"
#include "run/kinds.h"
#include "run/model_weights.h"
#include "tracker/progress.h"

namespace dalle2 {
namespace {

/// Weights belong to the model that they were trained as: another value would be passed over.
void check_overrides(const std::string& kind, const std::vector<std::string>& overrides) {
  const std::string model = "/" + kind;
  for (const std::string& text : overrides) {
    const std::string pointer = text.substr(0, text.find('='));
    if (pointer != model && !pointer.starts_with(model + "/")) continue;
    throw ConfigError(
        "--set {}: would make the checkpoint's model another one than its weights were trained for\n"
        "  Leave it away.{}",
        text,
        kind == "prior" ? " /train/eval_timesteps are the sampling steps of an evaluation." : "");
  }
}

/// The five similarities of /train/eval_timesteps, of the split's first batch, as a run logs them.
nlohmann::ordered_json prior_figures(const EvaluateCommand& command,
                                     const LoadedPriorConfig& loaded,
                                     const at::Device& device) {
  const TrainPriorConfig& config = loaded.config;
  DiffusionPrior prior = load_prior({command.checkpoint_path, command.config_path, command.use_ema},
                                    read_checkpoint(command.checkpoint_path));
  prior->to(device);
  const PriorDataset data(config.data, config.prior);
  const auto batch = data.batch(command.split, 0, config.data.batch_size);
  DropCounts total, dropped;
  if (batch) batch->drops.report(command.split, total, dropped);
  if (!batch || batch->size() == 0) {
    throw DataError("--split {}: has no usable row (/data/splits)", command.split);
  }
  nlohmann::ordered_json metrics;
  metrics["rows"] = batch->size();
  PriorSampleOptions options;
  options.text = {batch->text_embeds, batch->text_encodings};
  for (const int64_t steps : config.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = make_generator({config.seed, "similarities", /*epoch=*/0, steps}, device);
    const auto similarities = embedding_similarities(batch->text_embeds.to(device),
                                                     batch->image_embeds.to(device),
                                                     prior->p_sample_loop(options));
    for (const auto& [name, value] : similarities)
      metrics[fmt::format("{} [steps={}]", name, steps)] = value;
  }
  return metrics;
}

/// The metrics of /evaluate over samples of the split, as a run logs them.
nlohmann::ordered_json decoder_figures(const EvaluateCommand& command,
                                       const LoadedDecoderConfig& loaded,
                                       const at::Device& device) {
  const TrainDecoderConfig& config = loaded.config;
  if (config.evaluate.is_off()) {
    throw ConfigError(
        "{}: /evaluate: no metric is asked for\n  Give one, e.g. --set '/evaluate/FID="
        "{{\"feature_extractor_weights_path\": \"inception.pt\"}}'",
        command.config_path);
  }
  const std::unique_ptr<ImageMetrics> metrics = make_metrics(loaded, device);
  Decoder decoder = load_decoder({command.checkpoint_path, command.config_path, command.use_ema},
                                 read_checkpoint(command.checkpoint_path));
  decoder->to(device);
  decoder->eval();
  const ShardData data = decoder_data(config, loaded.plan, RankInfo{}, device);
  const auto [first_unet, last_unet] = trained_unets(loaded);
  Progress progress({.quiet = false, .terminal = log_is_terminal()});
  show_pairs({.data = &data,
              .split = command.split,
              .count = config.evaluate.n_evaluation_samples,
              .batch_size = config.data.batch_size,
              .seed = config.seed,
              .draw = {config.train.cond_scale, first_unet, last_unet, device},
              .sample =
                  [&](const DecoderSampleOptions& options) {
                    const torch::NoGradGuard no_grad;
                    return decoder->sample(options);
                  },
              .on_step = [&](const std::string& where) { progress.stage(where); }},
             /*rank=*/0,
             /*ranks=*/1,
             *metrics);
  progress.finish();
  const MetricValues found = metrics->compute();
  // Of a run that is not here, none is begun.
  if (config.evaluate.cache_path || std::filesystem::is_directory(config.tracker.data_path)) {
    keep_real_features(config, *metrics);
  }
  for (const std::string& fault : found.faults) log_warning("eval", "{}", fault);
  for (const std::string& note : found.notes) log_warning("eval", "{}", note);
  if (found.values.empty()) {
    throw DataError("--split {}: no metric could be computed, see above", command.split);
  }
  nlohmann::ordered_json json;
  json["images"] = found.images;
  for (const auto& [name, value] : found.values) json[name] = value;
  json["evaluation"] = metrics->description();
  return json;
}

/// The reconstruction of the split's pictures: mean absolute and mean square error, and the peak
/// signal-to-noise ratio of the latter, in dB.
nlohmann::ordered_json vae_figures(const EvaluateCommand& command,
                                   const LoadedVaeConfig& loaded,
                                   const at::Device& device) {
  const TrainVaeConfig& config = loaded.config;
  if (command.split == "test") {
    throw ConfigError("--split test: a VAE's pictures are divided into train and val");
  }
  VqganVae vae = load_vae({command.checkpoint_path, command.config_path, command.use_ema},
                          read_checkpoint(command.checkpoint_path));
  vae->to(device);
  ImageFolder data(config.data, config.vae.channels, config.seed);
  const torch::NoGradGuard no_grad;
  double absolute = 0, square = 0;
  int64_t pictures = 0;
  for (int64_t row = 0; row < data.rows(command.split); row += config.data.batch_size) {
    const auto batch = data.batch(command.split, /*epoch=*/0, row, config.data.batch_size);
    if (!batch || batch->size() == 0) continue;
    const at::Tensor images = batch->images.to(device);
    const at::Tensor apart = vae->reconstruct(images).images - images;
    const double values = static_cast<double>(images[0].numel());
    absolute += apart.abs().sum(at::kDouble).item<double>() / values;
    square += apart.square().sum(at::kDouble).item<double>() / values;
    pictures += batch->size();
  }
  if (pictures == 0) throw DataError("--split {}: has no usable picture", command.split);
  const double count = static_cast<double>(pictures);
  return {{"pictures", pictures},
          {"mean_absolute_error", absolute / count},
          {"mean_square_error", square / count},
          {"psnr_db", -10 * std::log10(square / count)}};
}

/// @param load of a kind's config @param figures of a checkpoint of that kind
template <class Load, class Figures>
nlohmann::ordered_json figures_of(const EvaluateCommand& command,
                                  const Load& load,
                                  const Figures& figures) {
  const auto loaded = load(command.config_path, with_checkpoints({.overrides = command.overrides}));
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  const at::Device device =
      choose_device(loaded.config.train.device, "/train/device", WithoutGpu::kWarn);
  return figures(command, loaded, device);
}

}  // namespace

nlohmann::ordered_json evaluate_prior(const EvaluateCommand& command) {
  return figures_of(command, load_prior_config, prior_figures);
}

nlohmann::ordered_json evaluate_vae(const EvaluateCommand& command) {
  return figures_of(command, load_vae_config, vae_figures);
}

nlohmann::ordered_json evaluate_decoder(const EvaluateCommand& command) {
  return figures_of(command, load_decoder_config, decoder_figures);
}

void run_evaluate(const EvaluateCommand& command) {
  const std::string kind = config_kind(command.config_path);
  check_overrides(kind, command.overrides);
  log_to_stderr();
  std::printf("%s\n", run_kind_of(kind).evaluate(command).dump(2).c_str());
}

}  // namespace dalle2
