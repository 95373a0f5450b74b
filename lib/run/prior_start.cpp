// SPDX-License-Identifier: MIT
// How a prior run starts and what it saves; the loop is in prior_run.cpp.
#include <torch/torch.h>

#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora_file.h"
#include "checkpoint/pth.h"
#include "checkpoint/value_json.h"
#include "optim/random.h"
#include "run/config_secrets.h"
#include "run/decoder_model.h"
#include "run/loader_state.h"
#include "run/prior_run.h"

namespace dalle2 {
namespace {

using Extras = std::vector<std::pair<std::string, Value>>;

const FormatFields& prior_placeholders() {
  static const FormatFields fields = {
      {"epoch", int64_t{0}}, {"samples_seen", int64_t{0}}, {"best_validation_loss", 0.5}};
  return fields;
}

Extras with_metadata(Extras extras, const SaveMetadata& metadata) {
  for (const auto& [key, json] : metadata) extras.emplace_back(key, value_of_json(json));
  return extras;
}

DiffusionPrior make_prior(const LoadedPriorConfig& loaded) {
  if (loaded.config.train.deterministic) use_deterministic_algorithms();
  torch::manual_seed(static_cast<uint64_t>(loaded.config.train.random_seed));
  return DiffusionPrior(loaded.plan);
}

/// [n] the losses, oldest first.
at::Tensor stacked(const std::deque<at::Tensor>& losses) {
  if (losses.empty()) return at::empty({0}, at::kFloat);
  return at::stack(std::vector<at::Tensor>(losses.begin(), losses.end())).cpu();
}

}  // namespace

PriorRun::PriorRun(const LoadedPriorConfig& loaded, bool quiet)
    : loaded_(loaded),
      config_(loaded.config),
      device_(choose_device(config_.train.device, "/train/device", /*allow_fallback=*/true)),
      data_(config_.data, config_.prior),
      tracker_(config_.tracker, prior_placeholders(), /*dummy=*/false),
      progress_({.quiet = quiet, .terminal = log_is_terminal()}),
      stage_times_(device_) {
  trainer_ = std::make_unique<PriorTrainer>(make_prior(loaded_), config_.train, device_);
  trainer_->set_stage_times(&stage_times_);
  position_.epoch = config_.train.current_epoch;
  position_.samples_seen = config_.train.num_samples_seen;
  position_.best_validation_loss = config_.train.best_validation_loss;
}

PriorRun::~PriorRun() = default;

void PriorRun::print_plan() const {
  const ParameterCount count = count_parameters(*trainer_->prior()->net());
  const int64_t batches =
      (data_.rows("train") + config_.data.batch_size - 1) / config_.data.batch_size;
  log_info("model", "Number of parameters: {} total; {} training", count.total, count.training);
  log_info("data",
           "rows: {} train, {} val, {} test; batches of {}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           with_commas(data_.rows("test")),
           config_.data.batch_size);
  log_info("train",
           "{} steps an epoch, {} in all",
           with_commas(batches),
           with_commas(batches * config_.train.epochs));
}

void PriorRun::print_start() const {
  log_info("train",
           "dalle2-train {} on {}, {} threads",
           program_version(),
           device_.str(),
           at::get_num_threads());
  if (const PrecisionChoice& precision = trainer_->precision(); !precision.reason.empty()) {
    log_info("train",
             "mixed precision: {} ({})",
             enum_names<MixedPrecision>[static_cast<size_t>(precision.precision)],
             precision.reason);
  }
  print_plan();
}

void PriorRun::recall() {
  tracker_.init();
  tracker_.save_config("prior_config.json", without_url_secrets(loaded_.raw_json));
  tracker_.add_save_metadata("config", without_url_secrets(loaded_.full_json));
  if (!tracker_.can_recall()) return;
  const std::vector<std::string> candidates = tracker_.recall_candidates();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string& path = candidates[i];
    Value checkpoint;
    try {
      checkpoint = read_checkpoint(path);
    } catch (const DataError& error) {
      if (i + 1 == candidates.size()) throw;
      log_warning("ckpt", "{}\n  Falling back to {}", error.what(), candidates[i + 1]);
      continue;
    }
    const Cursor root(checkpoint, path);
    if (config_.train.lora.rank > 0 && !has_lora(root)) {
      const Cursor weights = root.has("ema_model") ? root.at("ema_model") : root.at("model");
      return trainer_->load_base(weights.as_state_dict(), path);
    }
    trainer_->load_state(checkpoint, /*only_model=*/false, /*strict=*/true, path);
    return recall_position(root, path);
  }
}

void PriorRun::recall_position(const Cursor& root, const std::string& path) {
  if (root.has("epoch")) position_.epoch = root.at("epoch").as_int();
  if (root.has("samples_seen")) position_.samples_seen = root.at("samples_seen").as_int();
  if (root.has("best_validation_loss")) {
    position_.best_validation_loss = root.at("best_validation_loss").as_double();
  }
  // A checkpoint of the reference tells the samples of the whole run alone.
  position_.row = position_.samples_seen % data_.rows("train");
  if (const std::optional<Cursor> own = root.find(kOwnState)) {
    position_.row = own->at("row").as_int();
    position_.iteration = own->at("iteration").as_int();
    for (const at::Tensor& loss :
         own->at("recent_losses").as_tensor().to(device_, at::kFloat).unbind()) {
      recent_losses_.push_back(loss.clone());
    }
  }
  log_info("ckpt",
           "Loaded model from {} on epoch {} having seen {} samples with best validation loss {}",
           path,
           position_.epoch,
           position_.samples_seen,
           position_.best_validation_loss);
  log_info("ckpt", "Resuming at sample: {}", position_.row);
}

void PriorRun::save(bool is_best, bool is_latest) {
  if (const std::optional<std::string> part = trainer_->non_finite_part()) {
    throw NonFiniteError(
        "the {} are not finite (epoch {}, sample {})\n"
        "  Nothing of this state was saved: the last checkpoint is from before, unless the run "
        "began with such weights. Lower /train/lr, or start from another checkpoint.",
        *part,
        position_.epoch,
        position_.row);
  }
  stage_times_.begin(Stage::kSave);
  Dict own;
  own.set("version", program_version());
  own.set("row", position_.row);
  own.set("iteration", position_.iteration);
  own.set("recent_losses", stacked(recent_losses_));
  const Extras extras = {{"epoch", position_.epoch},
                         {"samples_seen", position_.samples_seen},
                         {"best_validation_loss", position_.best_validation_loss},
                         {kOwnState, own}};
  const Value checkpoint = trainer_->state(with_metadata(extras, tracker_.checkpoint_metadata()));
  const Value model = trainer_->model_state(with_metadata({}, tracker_.model_metadata()));
  SaveRequest request = {
      .is_best = is_best,
      .is_latest = is_latest,
      .position = {.samples_seen = position_.samples_seen,
                   .step = trainer_->steps(),
                   .epoch = position_.epoch},
      .placeholders = {{"epoch", position_.epoch},
                       {"samples_seen", position_.samples_seen},
                       {"best_validation_loss", position_.best_validation_loss}}};
  request.write_checkpoint = [&](const std::string& path) { write_pth(path, checkpoint); };
  request.write_model = [&](const std::string& path) { write_pth(path, model); };
  if (const auto lora = trainer_->lora_state()) {
    request.write_lora = [lora](const std::string& path) { write_lora_file(path, *lora); };
  }
  log_info("ckpt", "Saving {}", is_best ? "the best so far" : "the latest");
  tracker_.save(request);
  stage_times_.end(Stage::kSave);
  since_save_.restart();
  since_step_.restart();
}

}  // namespace dalle2
