// SPDX-License-Identifier: MIT
// How a decoder run starts, where it stands, and what it logs; the loop is in decoder_run.cpp.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/value_json.h"
#include "run/decoder_evaluation.h"
#include "run/decoder_run.h"
#include "run/loader_state.h"
#include "run/model_weights.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

/// What the images are conditioned on, in the reference's words where it has some.
std::string describe_conditioning(const TrainDecoderConfig& config, bool text_conditioned) {
  std::string source;
  if (config.decoder.unconditional) {
    source = "no conditioning";
  } else if (config.data.img_embeddings_url) {
    source = "precomputed image embeddings";
  } else {
    source = "image embeddings from the shards";
  }
  if (text_conditioned) {
    source += config.data.text_embeddings_url ? " and precomputed text embeddings"
                                              : " and text encodings from the shards";
  }
  return fmt::format("Training using {}. {}",
                     source,
                     text_conditioned ? "conditioned on text" : "not conditioned on text");
}

void log_parameters(const std::vector<std::shared_ptr<UnetImpl>>& unets) {
  ParameterCount all;
  std::vector<ParameterCount> counts;
  for (const auto& unet : unets) {
    counts.push_back(count_parameters(*unet));
    all.total += counts.back().total;
    all.training += counts.back().training;
  }
  log_info("model", "Number of parameters: {} total; {} training", all.total, all.training);
  for (size_t i = 0; i < counts.size(); ++i) {
    log_info("model", "Unet {} has {} total; {} training", i, counts[i].total, counts[i].training);
  }
}

std::unique_ptr<DecoderTrainer> make_trainer(const LoadedDecoderConfig& loaded,
                                             const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  Decoder decoder(loaded.plan);
  load_latent_vaes(decoder);
  std::vector<std::shared_ptr<UnetImpl>> unets;  // also those that are not trained
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) unets.push_back(decoder->unet(unet));
  auto trainer = std::make_unique<DecoderTrainer>(decoder, loaded.config.train, device);
  log_parameters(unets);
  return trainer;
}

std::vector<PartMetricNames> metric_names(size_t unets) {
  std::vector<PartMetricNames> names;
  for (size_t i = 0; i < unets; ++i) {
    const auto name = [&](const char* what) { return fmt::format("Unet {} {}", i, what); };
    names.push_back({.loss = name("Training Loss"),
                     .losses_not_finite = name("Losses Not Finite"),
                     .ema_decay = name("EMA Decay"),
                     .learning_rate = name("Learning Rate"),
                     .grad_norm = name("Grad Norm"),
                     .skipped_updates = name("Skipped Updates"),
                     .loss_scale = name("Loss Scale")});
  }
  return names;
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

}  // namespace

std::string decoder_config_for_checkpoint(const std::string& full_json) {
  auto config = nlohmann::ordered_json::parse(full_json);
  nlohmann::ordered_json kept = nlohmann::ordered_json::object();
  for (const auto& [key, value] : config["decoder"].items()) {
    const bool unused_extension = key == "zero_terminal_snr" && value == false;
    if (!value.is_null() && !unused_extension) kept[key] = value;
  }
  config["decoder"] = std::move(kept);
  return config.dump();
}

void DecoderPosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("sample", sample);
  visitor.field("next_task", next_task);
  visitor.field("validation_losses", validation_losses);
  visitor.field("samples_seen", samples_seen);
  visitor.own("loader_position", loader);
  visitor.own("iteration", iteration);
  visitor.own("samples_at_last_save", samples_at_last_save);
  visitor.own("samples_per_epoch", samples_per_epoch);
  visitor.own("validation_loss", validation_loss);
}

void DecoderPosition::guess_own_fields() {
  if (next_task != "train") sample = 0;
  loader = LoaderPosition::after_samples(sample);
  samples_at_last_save = sample;
}

void DecoderPosition::restart_epoch() {
  sample = iteration = samples_at_last_save = 0;
  loader = {};
}

std::string DecoderPosition::description() const {
  const auto best = std::min_element(validation_losses.begin(), validation_losses.end());
  std::string next = fmt::format("sampling and saving after epoch {}", epoch);
  if (next_task == "train") next = fmt::format("epoch {} at sample {}", epoch, sample);
  if (next_task == "val") next = fmt::format("the validation of epoch {}", epoch);
  return fmt::format(
      "epoch {} having seen {} samples with minimum validation loss {}\n"
      "  Going on with {}",
      epoch,
      samples_seen,
      best == validation_losses.end() ? "N/A" : short_number(*best),
      next);
}

bool DecoderPosition::is_best() const {
  return validation_loss && std::all_of(validation_losses.begin(),
                                        validation_losses.end(),
                                        [&](double earlier) { return *validation_loss < earlier; });
}

void DecoderPosition::gather(ProcessGroup& group) {
  if (group.is_alone()) return;
  std::vector<LoaderPosition> of_ranks;
  for (const std::string& text :
       group.gather_texts(json_of_value(value_of(loader)), "places of the lanes")) {
    const Value saved = value_of_json(text);
    of_ranks.push_back(loader_position_of(Cursor(saved)));
  }
  loader = join_positions(of_ranks);
}

DecoderRun::DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process)
    : TrainingRun(
          {.session = session_options(loaded, process),
           .texts = {.kind = "decoder",
                     .raw_json = loaded.raw_json,
                     .full_json = decoder_config_for_checkpoint(public_config(loaded.full_json))},
           .metrics = metric_names(loaded.plan.stages.size()),
           .suspects = "damaged images and embeddings with `dalle2-train shards check`"},
          std::make_unique<DecoderPosition>(),
          [&](const at::Device& device) { return make_trainer(loaded, device); }),
      loaded_(loaded),
      config_(loaded.config),
      position_(position_as<DecoderPosition>()),
      data_(config_,
            loaded.plan,
            RankInfo{session_.group().rank(), session_.group().size()},
            session_.device()),
      trainer_(trainer_as<DecoderTrainer>()),
      trained_unets_(trainer_.trained_parts()),
      pictures_(session_, trainer_, data_, config_),
      metrics_(make_metrics(loaded, session_.device())) {
  data_.keep_step_through(session_.group());
}

void DecoderRun::open() {
  session_.print_precision(trainer_.precision());
  log_info("train", "{}", describe_conditioning(config_, loaded_.plan.text_conditioned()));
  log_info("data",
           "shards: {} train, {} val, {} test; batches of {}{}",
           data_.num_shards("train"),
           data_.num_shards("val"),
           data_.num_shards("test"),
           config_.data.batch_size,
           of_each_rank(session_.group()));
  checkpoints_.set_data_size({data_.num_shards(), "shard"});
}

void DecoderRun::read_examples() {
  pictures_.load();
  pictures_.tell_latents();
}

LogRecord DecoderRun::step_values(double samples_per_second) {
  return {{"Epoch", position_.epoch},
          {"Sample", position_.sample},
          {"Step", position_.iteration},
          {"Samples per second", samples_per_second},
          {"Samples Seen", position_.samples_seen}};
}

int64_t DecoderRun::samples_per_epoch() const {
  return position_.samples_per_epoch > 0 ? position_.samples_per_epoch
                                         : config_.train.epoch_samples.value_or(0);
}

/// @param sums of the losses of each unet over the batches
void DecoderRun::log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples) {
  const auto loss_of = [&](int64_t unet) {
    return sums[static_cast<size_t>(unet - 1)] / static_cast<double>(batches);
  };
  double total = 0;
  for (const int64_t unet : trained_unets_) total += loss_of(unet);
  const double mean = total / static_cast<double>(trained_unets_.size());
  if (std::isfinite(mean)) {
    position_.validation_loss = mean;
  } else {
    log_warning(
        "val", "the validation loss of epoch {} is not finite: it does not count", position_.epoch);
  }
  LogRecord record;
  ShownValue shown{.label = "validation loss"};
  for (const int64_t unet : trained_unets_) {
    record.emplace_back(fmt::format("Unet {} Validation Loss", unet - 1), loss_of(unet));
    shown.values.emplace_back(loss_of(unet));
  }
  const ShownValue of{.label = "of", .values = {samples}, .unit = "samples"};
  session_.tracker().log(record, trainer_.first_steps(), ShownRecord{shown, of});
}

void DecoderRun::log_metrics(const MetricValues& found) {
  for (const std::string& fault : found.faults) log_warning("eval", "{}", fault);
  for (const std::string& note : found.notes) log_warning("eval", "{}", note);
  if (found.values.empty()) return;
  LogRecord record(found.values.begin(), found.values.end());
  record.emplace_back("Evaluation Samples", found.images);
  if (found.left_out > 0) record.emplace_back("Evaluation Samples Left Out", found.left_out);
  record.emplace_back("Evaluation", metrics_->description());
  session_.tracker().log(record, trainer_.first_steps(), shown_metrics(found));
}

void DecoderRun::report_drops(const DecoderLoader& loader, const std::string& split) {
  if (loader.dropped().empty()) return;
  log_warning("data", "{}: left out in this epoch: {}", split, describe_drops(loader.dropped()));
  LogRecord record;
  for (const auto& [reason, count] : loader.dropped())
    record.emplace_back(fmt::format("Dropped {}: {}", split, reason), count);
  session_.tracker().log(record, trainer_.first_steps(), ShownRecord{});
}

}  // namespace dalle2
