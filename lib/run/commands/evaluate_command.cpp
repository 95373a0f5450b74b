// SPDX-License-Identifier: MIT
// dalle2-train evaluate: metrics of a checkpoint as one JSON object.
#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "checkpoint/convert.h"
#include "data/pictures/image_folder.h"
#include "metrics/embedding_metrics.h"
#include "model/clip/clip.h"
#include "model/layers.h"
#include "model/random.h"
#include "run/checkpoints/clip_weights.h"
#include "run/checkpoints/model_weights.h"
#include "run/checkpoints/run_checkpoints.h"
#include "run/commands.h"
#include "run/commands/sample_command.h"
#include "run/commands/several_processes.h"
#include "run/decoder/decoder_data.h"
#include "run/device/compute_threads.h"
#include "run/device/device.h"
#include "run/kinds.h"
#include "run/loop/run_session.h"
#include "run/prior/prior_run.h"
#include "run/shards/shard_run.h"
#include "tracker/log/progress.h"
#include "trainer/tensor_group.h"

namespace dalle2 {
namespace {

/// @param timesteps one, or one for each unet; none: the config's
OneOrMany<std::optional<int64_t>> sampling_steps(const std::vector<int64_t>& timesteps) {
  if (timesteps.empty()) return std::nullopt;
  if (timesteps.size() == 1) return timesteps.front();
  return timesteps;
}

ModelSource source_of(const EvaluateCommand& command, const SharedTrainConfig& config) {
  return {.checkpoint_path = command.checkpoint_path,
          .config_path = command.config_path,
          .overrides = command.overrides,
          .use_ema = command.use_ema,
          .allow_changed_config = config.allow_changed_config};
}

/// The five similarities of /train/eval_timesteps, of the split's first batch, as a run logs them.
/// The ranks share the numbers of steps.
nlohmann::ordered_json figures_of(const EvaluateCommand& command,
                                  const LoadedPriorConfig& loaded,
                                  const at::Device& device,
                                  ProcessGroup& group) {
  constexpr size_t kSimilarities = 5;
  const TrainPriorConfig& config = loaded.config;
  const std::vector<int64_t>& steps =
      command.timesteps.empty() ? config.train.eval_timesteps : command.timesteps;
  for (const int64_t count : steps) {
    if (count >= 2 && count <= config.prior.timesteps) continue;
    throw ConfigError("--timesteps: expected 2 to {}, the training steps of the prior, got {}",
                      config.prior.timesteps,
                      count);
  }
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  DiffusionPrior prior = load_prior(source_of(command, config.train), checkpoint);
  prior->to(device);
  const auto clip = open_prior_clip(config.prior);
  if (clip) clip->clip->to(device);
  const PriorDataset data = prior_data(config, clip.get());
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), {count_rows(data), "row"});
  const auto batch = data.batch(command.split, 0, 0, config.data.batch_size);
  if (!batch || batch->size() == 0) {
    throw DataError("--split {}: has no usable row (/data/splits)", command.split);
  }
  std::vector<std::string> names(kSimilarities);
  std::vector<double> values(kSimilarities * steps.size(), 0.0);  // of other ranks: 0
  PriorSampleOptions options;
  const PriorInputs inputs = to_inputs(*batch, device, clip.get(), config.prior);
  options.text = inputs.text;
  for (size_t i = static_cast<size_t>(group.rank()); i < steps.size();
       i += static_cast<size_t>(group.size())) {
    options.timesteps = steps[i];
    options.generator =
        make_generator({config.seed, "similarities", /*epoch=*/0, steps[i]}, device);
    const auto similarities = embedding_similarities(
        inputs.text.embeds, inputs.image_embeds, prior->p_sample_loop(options));
    for (size_t j = 0; j < kSimilarities; ++j)
      std::tie(names[j], values[i * kSimilarities + j]) = similarities.at(j);
    group.still_busy();
  }
  values = group.sum(values, "similarities");
  nlohmann::ordered_json metrics;
  metrics["rows"] = batch->size();
  for (size_t i = 0; i < values.size(); ++i) {  // rank 0, which prints, has the names
    metrics[fmt::format("{} [steps={}]", names[i % kSimilarities], steps[i / kSimilarities])] =
        values[i];
  }
  return metrics;
}

/// The metrics of /evaluate over samples of the split, as a run logs them. The ranks share the
/// samples. @return on rank 0; null on the others
nlohmann::ordered_json figures_of(const EvaluateCommand& command,
                                  const LoadedDecoderConfig& loaded,
                                  const at::Device& device,
                                  ProcessGroup& group) {
  const TrainDecoderConfig& config = loaded.config;
  if (config.evaluate.is_off()) {
    throw ConfigError(
        "{}: /evaluate: no metric is requested\n  Give one, e.g. --set "
        "'/evaluate/FID={{\"feature_extractor_weights_path\": \"inception.pt\"}}'",
        command.config_path);
  }
  check_one_or_each(
      "--timesteps", command.timesteps.size(), loaded.plan.stages.size(), command.checkpoint_path);
  const std::unique_ptr<ImageMetrics> metrics = make_metrics(loaded, device);
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  Decoder decoder = load_decoder(source_of(command, config.train), checkpoint);
  decoder->to(device);
  lay_filters_in_order(*decoder);
  decoder->eval();
  const DecoderClip clip = open_decoder_clip(config, loaded.plan);
  if (clip.embedder) clip.embedder->clip->to(device);
  const auto clip_of_score = open_clip_of_score(loaded, clip, device);
  ShardData data(config.data, config.seed, decoder_needs(config, loaded.plan), device);
  data.deal(slices_of(root));
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), data_size_of(data));
  Progress progress({.quiet = !group.is_main(), .terminal = log_is_terminal()});
  show_pairs({.config = config,
              .data = &data,
              .split = command.split,
              .draw = draw_settings(loaded, device, clip),
              .clip_of_score = clip_of_score.get(),
              .sample =
                  [&](DecoderSampleOptions options) {
                    const torch::NoGradGuard no_grad;
                    options.sample_timesteps = sampling_steps(command.timesteps);
                    return decoder->sample(options);
                  },
              .on_step =
                  [&](const std::string& where) {
                    group.still_busy();
                    progress.stage(where);
                  }},
             {group.rank(), group.size()},
             *metrics);
  progress.finish();
  metrics->gather(group);
  if (!group.is_main()) return {};
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
  if (found.left_out > 0) json["images_left_out"] = found.left_out;
  for (const auto& [name, value] : found.values) json[name] = value;
  json["evaluation"] = metrics->description();
  if (!command.timesteps.empty()) json["timesteps"] = command.timesteps;
  return json;
}

/// The reconstruction of the split's pictures: mean absolute and mean square error, and the peak
/// signal-to-noise ratio of the latter, in dB. The ranks share the batches.
nlohmann::ordered_json figures_of(const EvaluateCommand& command,
                                  const LoadedVaeConfig& loaded,
                                  const at::Device& device,
                                  ProcessGroup& group) {
  const TrainVaeConfig& config = loaded.config;
  if (command.split == "test") {
    throw ConfigError("--split test: a VAE's pictures are divided into train and val");
  }
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  VqganVae vae = load_vae(source_of(command, config.train), checkpoint);
  vae->to(device);
  ImageFolder data(config.data, config.vae.channels, config.seed, gpu_of(device));
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), {data.files(), "picture"});
  const torch::NoGradGuard no_grad;
  // Of each batch: absolute and square errors, and pictures. Those of other ranks: 0.
  constexpr size_t kSums = 3;
  const int64_t size = config.data.batch_size;
  const int64_t batches = (data.rows(command.split) + size - 1) / size;
  std::vector<double> sums(kSums * static_cast<size_t>(batches), 0.0);
  for (int64_t number = group.rank(); number < batches; number += group.size()) {
    const auto batch = data.batch(command.split, /*epoch=*/0, number * size, size);
    data.read_ahead(command.split, /*epoch=*/0, (number + group.size()) * size, size);
    if (!batch || batch->size() == 0) continue;
    at::Tensor images = batch->images;
    copy_to_device(device, {&images});
    const at::Tensor apart = vae->reconstruct(images).images - images;
    const double values = static_cast<double>(images[0].numel());
    double* own = &sums[kSums * static_cast<size_t>(number)];
    own[0] = apart.abs().sum(at::kDouble).item<double>() / values;
    own[1] = apart.square().sum(at::kDouble).item<double>() / values;
    own[2] = static_cast<double>(batch->size());
    group.still_busy();
  }
  sums = group.sum(sums, "errors of the batches");
  double absolute = 0, square = 0;
  int64_t pictures = 0;
  for (size_t place = 0; place < sums.size(); place += kSums) {
    absolute += sums[place];
    square += sums[place + 1];
    pictures += static_cast<int64_t>(sums[place + 2]);
  }
  if (pictures == 0) throw DataError("--split {}: has no usable picture", command.split);
  const double count = static_cast<double>(pictures);
  return {{"pictures", pictures},
          {"mean_absolute_error", absolute / count},
          {"mean_square_error", square / count},
          {"psnr_db", -10 * std::log10(square / count)}};
}

/// The loss of the batches, and the retrieval over all samples of the split. The ranks share them.
nlohmann::ordered_json figures_of(const EvaluateCommand& command,
                                  const LoadedClipConfig& loaded,
                                  const at::Device& device,
                                  ProcessGroup& group) {
  const TrainClipConfig& config = loaded.config;
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  const LoadedRunClip clip = load_clip(source_of(command, config.train), checkpoint);
  clip.clip->to(device);
  const int64_t length = config.clip.text_cfg.context_length;
  ShardData data(config.data, config.seed, clip_needs(config.clip), device);
  data.deal(slices_of(root));
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), data_size_of(data));
  const auto loader = data.loader_of_share(command.split,
                                           config.train.validation_samples.value_or(INT64_MAX),
                                           config.data.batch_size,
                                           {group.rank(), group.size()});
  loader->start_epoch(0);
  const torch::NoGradGuard no_grad;
  ClipValidation validation;
  std::vector<double> sums(2, 0.0);  // losses, batches
  while (const std::optional<Batch> batch = loader->next()) {
    const at::Tensor pairs =
        pair_features(clip.clip->embed_image(batch->images.to(device)),
                      clip.network->text_features(
                          tokens_of(batch->captions, *clip.tokenizer, length).to(device)));
    sums[0] += contrastive_loss(pairs, clip.network->logit_scale).item<double>();
    sums[1] += 1;
    validation.add(pairs, batch->captions);
    group.still_busy();
  }
  sums = group.sum(sums, "losses of the batches");
  const RetrievalSamples samples = validation.gather(group);
  if (sums[1] == 0) throw DataError("--split {}: has no usable sample", command.split);
  nlohmann::ordered_json json;
  json["pairs"] = samples.pairs.size(0);
  json["loss"] = sums[0] / sums[1];
  for (const auto& [name, value] : retrieval_figures(samples)) json[name] = value;
  return json;
}

}  // namespace

template <auto parse>
ExitCode evaluate(const EvaluateCommand& command) {
  const auto loaded =
      load_config<parse>(command.config_path, with_checkpoints({.overrides = command.overrides}));
  if (command.processes > 1) return launch(command.processes);
  const SharedTrainConfig& train = loaded.config.train;
  const Meeting meeting = meeting_of(train, pass_work(loaded), loaded.warnings);
  return as_one_of_several(meeting, [&](ProcessGroup& group) {
    check_same_config(group, loaded.full_json, train.device);
    {
      const ProcessGroup::BusyScope busy(group, "evaluating");
      const at::Device device =
          group.is_alone() ? prepare_device(train, group.world()) : group.device();
      const nlohmann::ordered_json found = figures_of(command, loaded, device, group);
      if (group.is_main()) print_line("{}", found.dump(2));
    }
    group.barrier("the end of the evaluation");
    return ExitCode::kDone;
  });
}

template ExitCode evaluate<parse_decoder_config>(const EvaluateCommand& command);
template ExitCode evaluate<parse_prior_config>(const EvaluateCommand& command);
template ExitCode evaluate<parse_vae_config>(const EvaluateCommand& command);
template ExitCode evaluate<parse_clip_config>(const EvaluateCommand& command);

ExitCode run_evaluate(const EvaluateCommand& command) {
  const std::string kind = config_kind(command.config_path);
  if (!command.timesteps.empty() && !run_kind_of(kind).sample) {
    throw ConfigError("--timesteps: a {} draws nothing\n  Leave it out.", kind);
  }
  log_to_stderr();
  return run_kind_of(kind).evaluate(command);
}

}  // namespace dalle2
