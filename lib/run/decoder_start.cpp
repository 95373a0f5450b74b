// SPDX-License-Identifier: MIT
// How a decoder run starts and what it saves; the loop is in decoder_run.cpp.
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

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
#include "run/decoder_run.h"
#include "run/loader_state.h"

namespace dalle2 {
namespace {

using Extras = std::vector<std::pair<std::string, Value>>;

Extras with_metadata(Extras extras, const SaveMetadata& metadata) {
  for (const auto& [key, json] : metadata) extras.emplace_back(key, value_of_json(json));
  return extras;
}

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

Decoder make_decoder(const LoadedDecoderConfig& loaded) {
  if (loaded.config.train.deterministic) use_deterministic_algorithms();
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  return Decoder(loaded.plan);
}

void log_parameters(const std::vector<std::shared_ptr<UnetImpl>>& unets) {
  std::vector<ParameterCount> counts;
  ParameterCount all;
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

Value loss_list(const std::vector<double>& losses) {
  List list;  // of 0-d tensors, as the reference stores them
  for (const double loss : losses) list.items.emplace_back(at::scalar_tensor(loss, at::kFloat));
  return list;
}

/// The config with all defaults, but without what is off and an extension of ours, or null: the
/// reference builds its Decoder from all it finds under /decoder, and refuses both.
std::string config_for_checkpoint(const std::string& full_json) {
  auto config = nlohmann::ordered_json::parse(full_json);
  nlohmann::ordered_json kept = nlohmann::ordered_json::object();
  for (const auto& [key, value] : config["decoder"].items()) {
    const bool unused_extension = key == "zero_terminal_snr" && value == false;
    if (!value.is_null() && !unused_extension) kept[key] = value;
  }
  config["decoder"] = std::move(kept);
  return config.dump();
}

/// A list of tensors [n], one a unet, oldest loss first.
Value recent_losses(const std::vector<std::deque<at::Tensor>>& losses) {
  List list;
  for (const std::deque<at::Tensor>& of_unet : losses) {
    list.items.emplace_back(
        of_unet.empty() ? at::empty({0}, at::kFloat)
                        : at::stack(std::vector<at::Tensor>(of_unet.begin(), of_unet.end())).cpu());
  }
  return list;
}

}  // namespace

DecoderRun::DecoderRun(const LoadedDecoderConfig& loaded, bool quiet)
    : loaded_(loaded),
      config_(loaded.config),
      device_(choose_device(config_.train.device, "/train/device", /*allow_fallback=*/true)),
      data_(config_, loaded.plan, RankInfo{}, device_),
      tracker_(config_.tracker, decoder_placeholders(), /*dummy=*/false),
      progress_({.quiet = quiet, .terminal = log_is_terminal()}),
      stage_times_(device_) {
  Decoder decoder = make_decoder(loaded_);
  std::vector<std::shared_ptr<UnetImpl>> unets;  // also those that are not trained
  for (int64_t unet = 1; unet <= decoder->num_unets(); ++unet) unets.push_back(decoder->unet(unet));
  trainer_ = std::make_unique<DecoderTrainer>(decoder, config_.train, device_);
  log_parameters(unets);
  trainer_->set_stage_times(&stage_times_);
  for (int64_t unet = 1; unet <= trainer_->num_unets(); ++unet) {
    if (trainer_->is_trained(unet)) trained_unets_.push_back(unet);
  }
  recent_losses_.resize(static_cast<size_t>(trainer_->num_unets()));
  told_skipped_.resize(recent_losses_.size());
}

DecoderRun::~DecoderRun() = default;

void DecoderRun::print_start() const {
  log_info("train",
           "dalle2-train {} on {}, {} threads",
           program_version(),
           device_.str(),
           at::get_num_threads());
  log_info("train", "{}", describe_conditioning(config_, loaded_.plan.text_conditioned()));
  if (const PrecisionChoice& precision = trainer_->precision(); !precision.reason.empty()) {
    log_info("train",
             "mixed precision: {} ({})",
             enum_names<MixedPrecision>[static_cast<size_t>(precision.precision)],
             precision.reason);
  }
  log_info("data",
           "shards: {} train, {} val, {} test; batches of {}",
           data_.num_shards("train"),
           data_.num_shards("val"),
           data_.num_shards("test"),
           config_.data.batch_size);
}

void DecoderRun::recall() {
  tracker_.init();
  tracker_.save_config("decoder_config.json", without_url_secrets(loaded_.raw_json));
  tracker_.add_save_metadata("config",
                             config_for_checkpoint(without_url_secrets(loaded_.full_json)));
  if (tracker_.can_recall()) go_on_from(tracker_.recall_candidates());
}

/// Takes up the first of `candidates` that is whole, if there is one.
void DecoderRun::go_on_from(const std::vector<std::string>& candidates) {
  const std::optional<FoundCheckpoint> found = find_checkpoint(candidates);
  if (!found) return;
  const Cursor root(found->checkpoint, found->path);
  if (trainer_->uses_lora() && !has_lora(root)) {
    return trainer_->load_base(decoder_weights(root, /*use_ema=*/true), found->path);
  }
  trainer_->load_state(found->checkpoint, /*only_model=*/false, /*strict=*/true, found->path);
  position_ = {};
  validation_loss_.reset();
  averages_saved_at_ = 0;
  for (std::deque<at::Tensor>& losses : recent_losses_) losses.clear();
  remember_skipped();
  recall_position(root, found->path);
}

/// The newest checkpoint that is whole. For a run with adapters one that has them comes before the
/// weights it started from, whatever the order.
std::optional<DecoderRun::FoundCheckpoint> DecoderRun::find_checkpoint(
    const std::vector<std::string>& candidates) const {
  std::optional<FoundCheckpoint> base;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const std::string& path = candidates[i];
    const bool last = i + 1 == candidates.size();
    try {
      FoundCheckpoint found{read_checkpoint(path), path};
      if (!trainer_->uses_lora() || has_lora(Cursor(found.checkpoint, path))) return found;
      if (!base) base = std::move(found);
    } catch (const DataError& error) {
      if (last && i == 0) throw;
      if (last) {
        throw DataError("{}\n  No older file is whole: `dalle2-train fsck {}` says more.",
                        error.what(),
                        tracker_.data_path());
      }
      log_warning("ckpt", "{}\n  Falling back to {}", error.what(), candidates[i + 1]);
    }
  }
  return base;
}

void DecoderRun::recall_position(const Cursor& root, const std::string& path) {
  const auto number = [&](const Cursor& at, const char* key) {
    return at.has(key) ? at.at(key).as_int() : 0;
  };
  position_.epoch = number(root, "epoch");
  position_.samples_seen = number(root, "samples_seen");
  if (root.has("next_task")) position_.next_task = root.at("next_task").as_string();
  if (position_.next_task == "train") position_.sample = number(root, "sample");
  if (root.has("validation_losses")) {
    for (size_t i = 0; i < root.at("validation_losses").size(); ++i) {
      position_.validation_losses.push_back(root.at("validation_losses").at(i).as_double());
    }
  }
  // A checkpoint of the reference does not say where its loader stood; its sample count is next
  // best.
  position_.loader = LoaderPosition::after_samples(position_.sample);
  position_.samples_at_last_save = position_.sample;
  if (const std::optional<Cursor> own = root.find(kOwnState)) recall_own_state(*own);
  const std::vector<double>& losses = position_.validation_losses;
  log_info(
      "ckpt",
      "Loaded model from {} on epoch {} having seen {} samples with minimum validation loss {}",
      path,
      position_.epoch,
      position_.samples_seen,
      losses.empty() ? "N/A" : fmt::format("{}", *std::min_element(losses.begin(), losses.end())));
  log_info("ckpt",
           "Starting training from task {} at sample {} and validation sample 0",
           position_.next_task,
           position_.sample);
}

void DecoderRun::recall_own_state(const Cursor& own) {
  position_.loader = loader_position_of(own.at("loader_position"));
  position_.iteration = own.at("iteration").as_int();
  position_.samples_at_last_save = own.at("samples_at_last_save").as_int();
  samples_per_epoch_ = own.at("samples_per_epoch").as_int();
  if (own.has("roll_backs")) {
    roll_backs_ = own.at("roll_backs").as_int();
    trainer_->set_learning_rate_factor(own.at("learning_rate_factor").as_double());
  }
  const Cursor losses = own.at("recent_losses");
  for (size_t unet = 0; unet < losses.size() && unet < recent_losses_.size(); ++unet) {
    for (const at::Tensor& loss : losses.at(unet).as_tensor().to(device_, at::kFloat).unbind())
      recent_losses_[unet].push_back(loss.clone());
  }
}

void DecoderRun::load_examples() {
  for (const auto& [split, prefix, section] : {std::tuple{"train", "Train: ", "Train Samples"},
                                               std::tuple{"test", "Test: ", "Test Samples"}}) {
    for (Batch& batch : data_.examples(split, config_.train.n_sample_images)) {
      examples_.push_back({std::move(batch), prefix, section});
    }
  }
}

void DecoderRun::save(const std::string& next_task, bool is_best) {
  check_state();
  const int64_t sample = next_task == "train" ? position_.sample : 0;
  Dict own;
  own.set("version", program_version());
  own.set("loader_position", value_of(next_task == "train" ? position_.loader : LoaderPosition{}));
  own.set("iteration", next_task == "train" ? position_.iteration : 0);
  own.set("samples_at_last_save", next_task == "train" ? position_.samples_at_last_save : 0);
  own.set("samples_per_epoch", samples_per_epoch_);
  own.set("recent_losses", recent_losses(recent_losses_));
  if (roll_backs_ > 0) {
    own.set("roll_backs", roll_backs_);
    own.set("learning_rate_factor", trainer_->learning_rate_factor());
  }
  const std::vector<std::pair<std::string, Value>> extras = {
      {"epoch", position_.epoch},
      {"sample", sample},
      {"next_task", next_task},
      {"validation_losses", loss_list(position_.validation_losses)},
      {"samples_seen", position_.samples_seen},
      {kOwnState, own}};
  stage_times_.begin(Stage::kSave);
  start_saving({.is_best = is_best,
                .is_latest = true,
                .position = {.samples_seen = position_.samples_seen,
                             .step = trainer_->steps(trained_unets_.front()),
                             .epoch = position_.epoch},
                .placeholders = {{"epoch", position_.epoch},
                                 {"sample", sample},
                                 {"next_task", next_task},
                                 {"validation_losses", position_.validation_losses},
                                 {"samples_seen", position_.samples_seen}}},
               trainer_->state(with_metadata(extras, tracker_.checkpoint_metadata())),
               trainer_->model_state(with_metadata({}, tracker_.model_metadata())));
  stage_times_.end(Stage::kSave);
}

std::string DecoderRun::averages_name(int64_t step) {
  return fmt::format("step{:08}.pth", step);
}

/// Of /train/post_hoc_ema; does nothing where they were saved at this step.
void DecoderRun::save_averages() {
  const int64_t step = trainer_->steps(trained_unets_.front());
  if (!config_.train.post_hoc_ema.save_every_n_steps || step == averages_saved_at_) return;
  check_state();
  averages_saved_at_ = step;
  stage_times_.begin(Stage::kSave);
  const std::string path =
      fmt::format("{}/{}/{}", tracker_.data_path(), kAveragesFolder, averages_name(step));
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  saving_.start(saves_in_background(),
                {trainer_->post_hoc_state(with_metadata({}, tracker_.model_metadata()))},
                [path](const auto& writers) { writers.front()(path); });
  stage_times_.end(Stage::kSave);
}

/// Whoever stops has nothing to do meanwhile, and needs no copy.
bool DecoderRun::saves_in_background() const {
  return config_.train.async_save && !stopped_;
}

/// @param checkpoint, model with the live tensors
void DecoderRun::start_saving(SaveRequest request, Value checkpoint, Value model) {
  if (std::optional<LoraFile> lora = trainer_->lora_state()) {
    // Adapters are small: a copy is made in any case.
    for (auto& [name, tensor] : lora->tensors)
      tensor = tensor.to(at::kCPU, at::kFloat, false, true);
    request.write_lora = [file = std::move(*lora)](const std::string& path) {
      write_lora_file(path, file);
    };
  }
  saving_.start(saves_in_background(),
                {std::move(checkpoint), std::move(model)},
                [this, request = std::move(request)](const auto& writers) {
                  SaveRequest with_writers = request;
                  with_writers.write_checkpoint = writers[0];
                  with_writers.write_model = writers[1];
                  tracker_.save(with_writers);
                });
}

}  // namespace dalle2
