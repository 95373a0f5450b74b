// SPDX-License-Identifier: MIT
// What a decoder run is made of and does, what `evaluate` and `--dry-run` say of it, and the first config of
// `init`.
#include "run/decoder/decoder_data.h"

#include <torch/torch.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <exception>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "config/shared/old_configs.h"
#include "data/embeddings/embeddings.h"
#include "dist/process_group.h"
#include "io/pictures/image.h"
#include "metrics/script/script_archive.h"
#include "model/layers.h"
#include "model/random.h"
#include "model/resize.h"
#include "model/unet/unet.h"
#include "optim/precision.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands/sample_command.h"
#include "run/init/first_config.h"
#include "run/kinds.h"
#include "run/pictures/pictures.h"
#include "run/shards/shard_run.h"

namespace dalle2 {
namespace {

/// What the images are conditioned on.
std::string describe_conditioning(const TrainDecoderConfig& config,
                                  const DecoderClip& clip,
                                  bool text_conditioned) {
  std::string source;
  if (config.decoder.unconditional) {
    return "unconditional: draws pictures like those in the shards";
  } else if (clip.makes_image_embeds) {
    source = "image embeddings by " + clip.embedder->name;
  } else if (config.data.img_embeddings_url) {
    source = "precomputed image embeddings";
  } else {
    source = "image embeddings from the shards";
  }
  if (clip.makes_text_encodings) {
    source += " and text encodings by " + clip.embedder->name;
  } else if (text_conditioned) {
    source += config.data.text_embeddings_url ? " and precomputed text embeddings"
                                              : " and text encodings from the shards";
  }
  return "conditioned on " + source;
}

void log_parameters(const std::vector<std::shared_ptr<UnetImpl>>& unets) {
  ParameterCount all;
  std::vector<ParameterCount> counts;
  for (const auto& unet : unets) {
    counts.push_back(count_parameters(*unet));
    all.total += counts.back().total;
    all.training += counts.back().training;
  }
  log_parameters(all);
  if (counts.size() == 1) return;
  for (size_t i = 0; i < counts.size(); ++i) {
    log_info(
        "model", "Unet {} has {} total; {} training", i + 1, counts[i].total, counts[i].training);
  }
}

/// With the VAEs of its stages, and the CLIP that its files hold.
Decoder make_decoder(const LoadedDecoderConfig& loaded, const LoadedClip* clip) {
  Decoder decoder(loaded.plan);
  load_latent_vaes(decoder);
  check_stored_arrays(loaded, decoder, clip);
  if (clip != nullptr) clip->hold_in(*decoder);
  return decoder;
}

/// A picture of the training shards, if there is one. @throws DataError
void check_example(const ShardData& data,
                   const DecoderClip& clip,
                   const LoadedDecoderConfig& loaded) {
  const auto example = data.examples("train", 1);
  if (!example) return;
  if (clip.makes_image_embeds)
    naming_sample(*example, [&] { clip.check_pictures(example->images); });
  check_sizes(*example, loaded.config.train, loaded.plan);
}

std::unique_ptr<DecoderTrainer> make_trainer(const LoadedDecoderConfig& loaded,
                                             const DecoderClip& clip,
                                             const at::Device& device,
                                             ProcessGroup* group) {
  const std::vector<int64_t> recomputed = levels_to_recompute(loaded, clip.get(), device, group);
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  Decoder decoder = make_decoder(loaded, clip.get());
  // Before it moves to the device. Other ranks write no file.
  const bool is_main = group == nullptr || group->is_main();
  const std::string identity = is_main ? clip_identity(loaded.config, clip) : "";
  std::vector<std::shared_ptr<UnetImpl>> unets;  // also those that are not trained
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) unets.push_back(decoder->unet(unet));
  for (size_t i = 0; i < unets.size(); ++i) {
    if (recomputed[i] > 0) unets[i]->recompute_levels(recomputed[i]);
  }
  auto trainer = std::make_unique<DecoderTrainer>(decoder, loaded.config.train, device);
  trainer->set_clip_identity(identity);
  log_parameters(unets);
  return trainer;
}

std::vector<PartMetricNames> metric_names(size_t unets) {
  std::vector<PartMetricNames> names;
  for (size_t i = 0; i < unets; ++i) names.push_back({.prefix = fmt::format("Unet {} ", i)});
  return names;
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

[[noreturn]] void throw_too_small(const DecoderTrainConfig& train,
                                  const DryRunPlan::Network& network,
                                  uint64_t needed) {
  throw ConfigError(
      "/train/memory_budget_gib is {}, but a step of {} takes about {}, even if the backward pass computes "
      "all activations again\n  Give {:.1f} or more, lower /data/batch_size, set /train/max_batch_size to "
      "pass a batch in parts, or make the network smaller.",
      *train.memory_budget_gib,
      network.label,
      human_bytes(needed),
      // Rounded up, so that the number given here fits.
      static_cast<double>(needed / (1 << 30) * 10 + needed % (1 << 30) * 10 / (1 << 30) + 1) / 10);
}

/// The figures themselves, without their spread: a line of a terminal holds no more.
ShownRecord shown_metrics(const MetricValues& found) {
  ShownRecord shown;
  for (const auto& [name, value] : found.values) {
    if (name.ends_with("_std") || name.ends_with("_standard_error")) continue;
    if (name == "PR_recall") {
      shown.back().values.emplace_back(value);
    } else {
      shown.push_back({.label = name == "PR_precision" ? "P/R" : name.substr(0, name.find('_')),
                       .values = {value}});
    }
  }
  return shown;
}

void warn_of_faults(const MetricValues& found) {
  for (const std::string& fault : found.faults) log_warning("eval", "{}", fault);
  for (const std::string& note : found.notes) log_warning("eval", "{}", note);
}

/// Errors while the figures are computed are listed in their `faults`. @throws StoppedError
MetricValues compute_figures(const ImageMetrics& metrics) {
  try {
    return metrics.compute();
  } catch (const StoppedError&) {
    throw;
  } catch (const std::exception& error) {
    return {.values = {}, .faults = {last_message(error)}, .notes = {}};
  }
}

void check_stored(const at::Tensor& stored, const at::Tensor& made) {
  constexpr double kMostDifference = 1e-2;  // of their spread: they may have been made on a GPU
  std::string difference = "another shape";
  if (stored.sizes() == made.sizes()) {
    const double share = ((stored - made).norm() / made.norm()).item<double>();
    if (share <= kMostDifference) return;
    difference = fmt::format("differ by {} of their size", short_number(share));
  }
  throw DataError(
      "/data/latents_in_tar: the latents in the shards are not what /decoder/vae/0 makes of their "
      "pictures (the first {}: {})\n  They belong to another VAE, image size or preprocessing: "
      "make them again with `dalle2-train shards encode`.",
      made.size(0),
      difference);
}

class DecoderRun : public ShardRun {
 public:
  DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process, const DecoderClip& clip)
      : ShardRun(
            run_plan(loaded,
                     process,
                     metric_names(loaded.plan.stages.size()),
                     "damaged images and embeddings with `dalle2-train shards check`"),
            [&](const at::Device& device) {
              return make_trainer(loaded, clip, device, process.group);
            },
            loaded.config.train,
            loaded.config.data,
            decoder_needs(loaded.config, loaded.plan)),
        loaded_(loaded),
        config_(loaded.config),
        trainer_(trainer_as<DecoderTrainer>()),
        clip_(clip),
        trained_unets_(trainer_.trained_parts()),
        metrics_(make_metrics(loaded, session_.device())),
        clip_of_score_(open_clip_of_score(loaded, clip_, session_.device())) {
    if (!clip_.embedder) return;
    clip_.embedder->precision = trainer_.precision().precision;
    clip_.embedder->max_batch_size = config_.train.max_batch_size;
  }

  void open() override {
    TrainingRun::open();
    log_info("train", "{}", describe_conditioning(config_, clip_, loaded_.plan.text_conditioned()));
  }

 private:
  void prepare() override {
    ShardRun::prepare();
    session_.together(
        "looking at a picture",
        std::bind_front(check_example, std::cref(data_), std::cref(clip_), std::cref(loaded_)),
        {.on_main = true});
    training_ = examples("train");
    test_ = examples("test");
    tell_latents();
  }
  std::optional<int64_t> accumulate() override {
    return pass_group(group_, trained_unets_, [&](const Batch& batch, const BatchShare& share) {
      const DecoderInputs inputs = timed(&session_.times(), StepPhase::kCopy, [&] {
        return to_inputs(batch, session_.device(), clip_);
      });
      for (const int64_t unet : trained_unets_) {
        const at::Generator random =
            session_.generator(fmt::format("train unet {}", unet), position_.epoch, batch.row);
        trainer_.step(inputs, unet, random, share);
      }
    });
  }
  void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) override {
    const DecoderInputs inputs = to_inputs(batch, session_.device(), clip_);
    for (const int64_t unet : trained_unets_) {
      // The same draws in every epoch: the losses of two epochs then differ by the weights alone.
      const at::Generator random =
          session_.generator(fmt::format("validate unet {}", unet), /*epoch=*/0, batch.row);
      sums[static_cast<size_t>(unet - 1)].add(trainer_.evaluate(inputs, unet, random));
    }
  }
  void show_snapshot() override { draw(training_, "Train"); }
  void evaluate_epoch() override {
    if (!metrics_) return;
    log_info("eval", "Evaluating epoch {}: {}", position_.epoch, metrics_->description());
    log_metrics(compute_metrics());
  }
  /// The state is saved before pictures are drawn, which may take long and are for people to look at.
  void sample_epoch() override {
    log_info("sample", "Sampling and saving after epoch {}", position_.epoch);
    save_epoch();
    const HeldAverages averages = trainer_.hold_averages();
    draw(test_, "Test");
    draw(training_, "Train");
  }
  /// A fault in the pictures is no reason to lose a run: it is logged, and the run continues.
  /// @return on rank 0; nothing on the others
  MetricValues compute_metrics() {
    ProcessGroup& group = session_.group();
    const HeldAverages averages = trainer_.hold_averages();
    metrics_->reset();
    std::string fault;
    session_.together("drawing for the metrics", [&] {
      try {
        show_pairs({.config = config_,
                    .data = &data_,
                    .draw = draw_settings(loaded_, session_.device(), clip_),
                    .clip_of_score = clip_of_score_.get(),
                    .sample = [this](const auto& options) { return trainer_.sample(options); },
                    .on_step =
                        [this](const std::string& where) {
                          session_.throw_if_signalled();
                          session_.progress().stage(where);
                        }},
                   {group.rank(), group.size()},
                   *metrics_);
      } catch (const StoppedError&) {
        throw;
      } catch (const std::exception& error) {
        fault = last_message(error);
      }
    });
    session_.progress().pause();
    for (const std::string& each : group.gather_texts(fault, "faults of the evaluation")) {
      if (each.empty()) continue;
      metrics_->reset();
      return {.values = {}, .faults = {each}, .notes = {}};
    }
    metrics_->gather(group);
    MetricValues found;
    const auto compute = [&] {
      found = compute_figures(*metrics_);
      keep_real_features(config_, *metrics_);
    };
    session_.together("computing the metrics", compute, {.on_main = true});
    metrics_->reset();  // all features of all ranks: no memory for the next epoch
    return found;
  }
  void log_metrics(const MetricValues& found) {
    warn_of_faults(found);
    if (found.values.empty()) return;
    LogRecord record(found.values.begin(), found.values.end());
    record.emplace_back("Evaluation Samples", found.images);
    if (found.left_out > 0) record.emplace_back("Evaluation Samples Left Out", found.left_out);
    record.emplace_back("Evaluation", metrics_->description());
    session_.tracker().log(record, trainer_.first_steps(), shown_metrics(found));
  }

  /// Logs how the latents of the first of these are spread, for each stage with a VAE.
  void tell_latents() const {
    if (!training_) return;
    for (int64_t unet = 1; unet <= trainer_.num_unets(); ++unet) {
      const UnetPlan& stage = trainer_.decoder()->plan().stages[static_cast<size_t>(unet - 1)];
      if (!stage.latent) continue;
      const at::Tensor images = training_->images.to(session_.device());
      const at::Tensor latents = trainer_.decoder()->encode(images, unet);
      const auto of_one = [](const at::Tensor& value) {
        return short_number(value.item<double>());
      };
      log_info("model",
               "latents of unet {}: {} channels of {} x {}, mean {}, standard deviation {}"
               " (/decoder/vae/{}/scale is {})",
               unet,
               latents.size(1),
               latents.size(2),
               latents.size(3),
               of_one(latents.mean()),
               of_one(latents.std()),
               unet - 1,
               short_number(stage.latent->scale));
      const at::Tensor& stored = training_->latents;
      if (unet == 1 && stored.defined()) check_stored(stored * stage.latent->scale, latents.cpu());
    }
  }
  /// The first /train/n_sample_images of a split, for the pictures of the log: rank 0 reads them and gives
  /// them to the others, so that all draw for the same. @throws DataError, NetworkError, StoppedError
  std::optional<Batch> examples(const std::string& split) {
    std::optional<Batch> own;
    session_.together("reading the samples for pictures",
                      [&] { own = data_.examples(split, config_.train.n_sample_images); },
                      {.on_main = true});
    return batch_of_main(session_.group(), std::move(own));
  }
  /// Each rank draws a stretch of the pictures; rank 0 logs all. Checks for a stop signal before each step
  /// of a sampler. @param name of the split, in captions @throws StoppedError
  void draw(const std::optional<Batch>& examples, const std::string& name) {
    if (!examples) return;
    const HeldAverages averages = trainer_.hold_averages();
    ProcessGroup& group = session_.group();
    const int64_t count = examples->size();
    const int64_t begin = group.rank() * count / group.size();
    const int64_t end = (group.rank() + 1) * count / group.size();
    std::vector<at::Tensor> drawn;
    session_.together("drawing pictures", [&] {
      if (begin == end) return;
      for (const ChunkRange& range : chunk_ranges(end - begin, config_.data.batch_size)) {
        drawn.push_back(
            draw_part(*examples, name + " Samples", {begin + range.begin, range.length}));
      }
    });
    const at::Tensor own =
        drawn.empty() ? at::empty({0}) : at::cat(drawn).to(at::kFloat).contiguous();
    std::vector<at::Tensor> all = gather_rows(group, own, "pictures");
    std::erase_if(all, [](const at::Tensor& rows) { return rows.numel() == 0; });
    if (group.is_main()) log_pictures(*examples, name, at::cat(all));
  }
  /// @return [range.length, C, H, W] on the CPU
  at::Tensor draw_part(const Batch& examples, const std::string& section, const ChunkRange& range) {
    std::vector<int64_t> rows(static_cast<size_t>(range.length));
    std::iota(rows.begin(), rows.end(), range.begin);
    // The same noise every time, so that the pictures of two epochs show what training changed.
    DecoderSampleOptions options =
        draw_options(examples,
                     range,
                     draw_settings(loaded_, session_.device(), clip_),
                     hash_address({.seed = config_.seed, .purpose = "sample " + section}),
                     rows);
    options.on_step = [&](int64_t unet, size_t step, size_t steps) {
      session_.throw_if_signalled();
      session_.progress().stage(
          fmt::format("drawing {}: unet {}, step {}/{}", section, unet, step + 1, steps));
    };
    return trainer_.sample(options).cpu();
  }
  /// @param drawn [n, C, H, W] beside the real pictures
  void log_pictures(const Batch& examples, const std::string& name, const at::Tensor& drawn) {
    const at::Tensor real =
        resize_image_to(examples.images, drawn.size(-1), std::make_pair(0.0, 1.0));
    std::vector<LogImage> pairs;
    std::vector<at::Tensor> all;
    for (int64_t i = 0; i < drawn.size(0); ++i) {
      const std::vector<at::Tensor> pair = {real[i], drawn[i].clamp(0, 1)};
      all.insert(all.end(), pair.begin(), pair.end());
      pairs.push_back({encode_png(to_picture(image_grid(pair, 2))),
                       name + ": " + examples.captions[static_cast<size_t>(i)]});
    }
    session_.progress().pause();
    Tracker& tracker = session_.tracker();
    tracker.log_images(pairs, name + " Samples", trainer_.first_steps());
    // All pairs on one sheet, four pairs a row.
    tracker.log_images({{encode_png(to_picture(image_grid(all, 8))),
                         config_.decoder.unconditional
                             ? "real | drawn; the drawn ones are of no subject that was asked for"
                             : "real | drawn, in pairs"}},
                       name + " Samples Grid",
                       trainer_.first_steps());
  }

  const LoadedDecoderConfig& loaded_;
  const TrainDecoderConfig& config_;
  DecoderTrainer& trainer_;
  DecoderClip clip_;
  std::vector<int64_t> trained_unets_;         // numbers from 1
  std::optional<Batch> training_, test_;       // pictures for the log; none without
  std::unique_ptr<ImageMetrics> metrics_;      // null: none is asked for
  std::shared_ptr<LoadedClip> clip_of_score_;  // null: no CLIP score is asked for
};

}  // namespace

ConfigTexts config_texts(const LoadedDecoderConfig& loaded) {
  ConfigTexts texts = config_texts<LoadedDecoderConfig>(loaded);
  Json config = Json::parse(texts.full_json);
  fit_reference(config);
  texts.full_json = config.dump();
  return texts;
}

std::unique_ptr<TrainingRun> make_run(const LoadedDecoderConfig& loaded,
                                      const RunProcess& process) {
  return std::make_unique<DecoderRun>(
      loaded, process, open_decoder_clip(loaded.config, loaded.plan));
}

/// The metrics of /evaluate over samples of the split, as a run logs them. The ranks share the
/// samples. @return on rank 0; null on the others
nlohmann::ordered_json figures_of(const LoadedDecoderConfig& loaded, const Evaluation& evaluation) {
  const auto& [command, device, group] = evaluation;
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
  Decoder decoder = load_decoder(evaluation.source(config.train), checkpoint);
  decoder->to(device);
  lay_filters_in_order(*decoder);
  decoder->eval();
  const DecoderClip clip = open_decoder_clip(config, loaded.plan);
  if (clip.embedder) clip.embedder->clip->to(device);
  const auto clip_of_score = open_clip_of_score(loaded, clip, device);
  ShardData data(config.data, config.seed, decoder_needs(config, loaded.plan), device);
  data.deal(slices_of(root));
  if (group.is_main()) warn_of_other_splits(root, config_texts(loaded), data_size_of(data));
  OneOrMany<std::optional<int64_t>> steps(std::nullopt);  // the config's
  if (command.timesteps.size() == 1) steps = command.timesteps.front();
  if (command.timesteps.size() > 1) steps = command.timesteps;
  Progress progress({.quiet = !group.is_main(), .terminal = log_is_terminal()});
  show_pairs({.config = config,
              .data = &data,
              .split = command.split,
              .draw = draw_settings(loaded, device, clip),
              .clip_of_score = clip_of_score.get(),
              .sample =
                  [&](DecoderSampleOptions options) {
                    const torch::NoGradGuard no_grad;
                    options.sample_timesteps = steps;
                    options.steps_name = "--timesteps";
                    return decoder->sample(options);
                  },
              .on_step =
                  [&](const std::string& where) {
                    evaluation.group.still_busy();
                    progress.stage(where);
                  }},
             {group.rank(), group.size()},
             *metrics);
  progress.finish();
  metrics->gather(group);
  if (!group.is_main()) return {};
  const MetricValues found = metrics->compute();
  // Of a run that is not here, none is begun.
  if (config.evaluate.cache_path || std::filesystem::is_directory(config.tracker.data_path))
    keep_real_features(config, *metrics);
  warn_of_faults(found);
  if (found.values.empty())
    throw DataError("--split {}: no metric could be computed, see above", command.split);
  nlohmann::ordered_json json;
  json["images"] = found.images;
  if (found.left_out > 0) json["images_left_out"] = found.left_out;
  for (const auto& [name, value] : found.values) json[name] = value;
  json["evaluation"] = metrics->description();
  if (!command.timesteps.empty()) json["timesteps"] = command.timesteps;
  return json;
}

DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const LoadedClip* clip) {
  const DecoderTrainConfig& train = loaded.config.train;
  // The CPU computes the steps whatever the device of the run. Both half precisions take the same memory.
  const bool is_half = train.mixed_precision.value_or(MixedPrecision::no) != MixedPrecision::no;
  const MixedPrecision precision = is_half ? MixedPrecision::bf16 : MixedPrecision::no;
  Decoder decoder = make_decoder(loaded, clip);
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
    plan.networks.push_back({.label = fmt::format("unet {}", unet),
                             .note = fmt::format("{} px", loaded.plan.stages[i].image_size),
                             .prefix = fmt::format("unets.{}.", i),
                             .module = networks[i],
                             .make = makers[i],
                             .step = [decoder, unet, precision](int64_t batch) {
                               step(decoder, unet, batch, precision);
                             }});
  }
  plan.texts = config_texts(loaded);
  return plan;
}

void dry_run(const LoadedDecoderConfig& loaded, int64_t processes, const StartOptions& start) {
  const TrainDecoderConfig& config = loaded.config;
  ShardData data(config.data,
                 config.seed,
                 decoder_needs(config, loaded.plan),
                 at::kCPU,
                 RankInfo{.world = static_cast<int>(processes)});
  data.deal();
  data.check_usable("train");
  const auto metrics = make_metrics(loaded, at::kCPU);
  const DecoderClip clip = open_decoder_clip(config, loaded.plan);
  open_clip_of_score(loaded, clip, at::kCPU);
  check_example(data, clip, loaded);
  DryRunPlan plan = decoder_dry_run_plan(loaded, clip.get());
  plan.data_size = data_size_of(data);
  plan.fit_budget = [&](PeakMemory& memory) {
    return fit_memory_budget(plan, config.train, memory);
  };
  ShardPosition position;
  plan.start = start;
  finish_dry_run(plan, config.tracker, config.train, position, processes, [&] {
    print_shards(data, position, config.train, config.train, processes);
    if (!metrics) return;
    print_line("metrics of at most {} after each epoch: {}",
               counted(config.evaluate.n_evaluation_samples, "image"),
               metrics->description());
  });
}

FirstConfig decoder_first_config(const InitCommand& command) {
  const ShardSurvey survey = survey_shards(command);
  const FirstRecipe recipe = first_recipe(FirstKind::kDecoder, command, survey);
  FirstConfig first{.found = describe(survey), .recipe = recipe};
  std::string folder = find_embeddings(command.data, {"img_emb", "embeddings"});
  if (const auto manifest = embed_manifest_of(folder); manifest && survey.embed_width == 0) {
    first.found.push_back(fmt::format(
        "{}, which `shards embed` made: a decoder reads these embeddings from the shards beside them. For that, "
        "use: dalle2-train init {}",
        folder,
        std::filesystem::path(*manifest)
            .parent_path()
            .lexically_relative(std::filesystem::current_path())
            .string()));
    folder.clear();
  }
  std::string embeddings;  // of the section `data`
  int64_t width = 0;
  if (survey.embed_width > 0) {
    width = survey.embed_width;
    embeddings = "    \"embeddings_in_tar\": true,     // KEY.img_emb.npy beside each picture\n";
    first.found.push_back(fmt::format("image embeddings of width {} in the shards", width));
  } else if (!folder.empty()) {
    const EmbeddingFolder stored(folder, "image", survey.width);
    width = stored.row_shape().empty() ? 0 : stored.row_shape().back();
    embeddings = fmt::format("    \"img_embeddings_url\": {},\n", json_text(folder));
    if (survey.pictures > 0)
      embeddings += "    \"folder_order\": \"in_order\",   // rows follow the paths\n";
    first.found.push_back(
        fmt::format("image embeddings of width {} in {}, {}", width, folder, stored.describe()));
  }
  for (std::string& line : of_smaller_pictures(survey, recipe.side)) first.found.push_back(line);
  const std::string model = fmt::format(
      R"(    {}
    "unets": [{{"dim": {}, "dim_mults": [1, 2, 4], "num_resnet_blocks": {}, "num_time_tokens": 1{}}}],
{}    "image_size": {},               // pixels; "image_sizes" for a cascade, one a unet
    "timesteps": 1000,
    "sample_timesteps": [50],       // DDIM steps when drawing; null for all 1000
    "learned_variance": false,
    "predict_v": true
)",
      embeddings.empty() ? R"("unconditional": true,        // no embeddings were found)"
                         : R"("unconditional": false,       // conditioned on image embeddings)",
      recipe.dim,
      recipe.dim > 32 ? 2 : 1,
      embeddings.empty() ? ""
                         : fmt::format(R"(, "image_embed_dim": {}, "num_image_tokens": 4)", width),
      channels_text(survey.tally),
      recipe.side);
  first.text = first_file(command,
                          recipe,
                          model,
                          shards_text(command, survey, recipe, /*least=*/0.8, embeddings),
                          "    \"n_sample_images\": 8,\n");
  return first;
}

std::vector<std::string> fit_memory_budget(const DryRunPlan& plan,
                                           const DecoderTrainConfig& train,
                                           PeakMemory& memory) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < plan.networks.size() && train.memory_budget_gib; ++i) {
    const DryRunPlan::Network& network = plan.networks[i];
    if (!network.module) continue;
    auto& unet = dynamic_cast<UnetImpl&>(*network.module);
    int64_t levels = unet.recomputed_levels();
    uint64_t& bytes = memory.activation_bytes[i];
    const uint64_t before = bytes;
    const double budget = *train.memory_budget_gib * static_cast<double>(1 << 30);
    while (memory.kept_bytes + bytes > static_cast<uint64_t>(budget)) {
      if (levels == unet.recomputable_levels())
        throw_too_small(train, network, memory.kept_bytes + bytes);
      unet.recompute_levels(++levels);
      bytes = activation_bytes(network, plan, train);
    }
    if (before == bytes) continue;
    lines.push_back(fmt::format(
        "{}: to fit /train/memory_budget_gib, the backward pass recomputes {} of {} levels (about {} "
        "instead of {})",
        network.label,
        levels,
        unet.recomputable_levels(),
        human_bytes(memory.kept_bytes + bytes),
        human_bytes(memory.kept_bytes + before)));
  }
  return lines;
}

std::vector<int64_t> levels_to_recompute(const LoadedDecoderConfig& loaded,
                                         const LoadedClip* clip,
                                         const at::Device& device,
                                         ProcessGroup* group) {
  std::vector<int64_t> levels(loaded.plan.stages.size(), 0);
  if (!loaded.config.train.memory_budget_gib) return levels;
  std::string problem;
  std::exception_ptr fault;
  if (group == nullptr || group->is_main()) {
    // The others wait. Steps of a large network take long.
    std::optional<ProcessGroup::BusyScope> busy;
    if (group != nullptr) busy.emplace(*group, "fitting the memory budget");
    try {
      const DryRunPlan plan = decoder_dry_run_plan(loaded, clip);
      PeakMemory memory = peak_memory(plan, loaded.config.train, device.is_cpu());
      for (const std::string& line : fit_memory_budget(plan, loaded.config.train, memory))
        log_info("model", "{}", line);
      for (size_t i = 0; i < levels.size(); ++i) {
        if (const auto* unet = dynamic_cast<UnetImpl*>(plan.networks[i].module.get()))
          levels[i] = unet->recomputed_levels();
      }
    } catch (const std::exception& error) {
      fault = std::current_exception();
      problem = last_message(error);
    }
  }
  if (group != nullptr) {
    problem = group->text_of_main(problem, "whether the memory budget fits");
    levels = group->exchange(levels, "levels to compute again").front();
  }
  if (fault) std::rethrow_exception(fault);
  if (!problem.empty()) throw ConfigError("rank 0: {}", problem);
  return levels;
}

}  // namespace dalle2
