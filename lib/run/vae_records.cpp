// SPDX-License-Identifier: MIT
// How a VAE's run starts, where it stands, and what it logs; the loop is in vae_run.cpp.
#include <torch/torch.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/writable.h"
#include "run/model_weights.h"
#include "run/vae_features.h"
#include "run/vae_run.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

std::unique_ptr<VaeTrainer> make_trainer(const LoadedVaeConfig& loaded, const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  ImageFeatures features = perceptual_features(loaded.config, device);
  VqganVae vae(loaded.config.vae);
  auto trainer =
      std::make_unique<VaeTrainer>(vae, loaded.config.train, std::move(features), device);
  const ParameterCount count = count_parameters(*vae);
  log_info("model", "Number of parameters: {} total; {} training", count.total, count.training);
  return trainer;
}

/// muse's trainer logs `loss` and `discr_loss`.
std::vector<PartMetricNames> metric_names(const VaeConfig& config) {
  std::vector<PartMetricNames> names;
  for (const char* prefix : {"", "discr_"}) {
    const auto name = [&](const char* what) { return std::string(prefix) + what; };
    names.push_back({.loss = name("loss"),
                     .losses_not_finite = name("losses_not_finite"),
                     .ema_decay = name("ema_decay"),
                     .learning_rate = name("learning_rate"),
                     .grad_norm = name("grad_norm"),
                     .skipped_updates = name("skipped_updates"),
                     .loss_scale = name("loss_scale")});
    if (!config.use_vgg_and_gan) break;
  }
  return names;
}

void add_to(at::Tensor& sum, const at::Tensor& part) {
  if (part.defined()) sum = sum.defined() ? sum + part : part;
}

}  // namespace

void VaePosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("step", step);
  visitor.field("samples_seen", samples_seen);
  visitor.own("row", row);
  visitor.own("iteration", iteration);
  int64_t due = discriminator_is_due ? 1 : 0;
  visitor.own("discriminator_is_due", due);
  discriminator_is_due = due != 0;
  std::optional<double> best;
  if (best_validation_loss != 0) best = best_validation_loss;
  visitor.own("best_validation_loss", best);
  best_validation_loss = best.value_or(0);
}

std::string VaePosition::description() const {
  return fmt::format("step {}, epoch {}, having seen {} samples", step, epoch, samples_seen);
}

void VaeDiagnostics::add(const VaeLosses& losses) {
  add_to(reconstruction_, losses.reconstruction);
  add_to(perceptual_, losses.perceptual);
  add_to(generator_, losses.generator);
  add_to(gan_weight_, losses.gan_weight);
  add_to(quantizer_, losses.quantizer);
  add_to(uses_, at::bincount(losses.indices.flatten(), {}, codes_));
}

LogRecord VaeDiagnostics::take(ProcessGroup& group) {
  LogRecord record;
  const double steps = static_cast<double>(std::max<int64_t>(steps_, 1));
  for (const auto& [name, sum] : {std::pair{"reconstruction_loss", &reconstruction_},
                                  std::pair{"perceptual_loss", &perceptual_},
                                  std::pair{"generator_loss", &generator_},
                                  std::pair{"gan_weight", &gan_weight_},
                                  std::pair{"quantizer_loss", &quantizer_}}) {
    const double own = sum->defined() ? sum->item<double>() : std::nan("");
    const bool is_logged = group.any(sum->defined(), "losses that are logged");
    if (!is_logged) continue;
    const double all = group.sum({sum->defined() ? own : 0.0}, "losses that are logged").front();
    record.emplace_back(name, all / steps);
  }
  std::vector<double> uses(static_cast<size_t>(codes_), 0.0);
  if (uses_.defined()) {
    const at::Tensor counts = uses_.to(at::kCPU, at::kDouble).contiguous();
    uses.assign(counts.const_data_ptr<double>(), counts.const_data_ptr<double>() + codes_);
  }
  uses = group.sum(uses, "uses of the codes");
  double used = 0, all = 0, entropy = 0;
  for (const double count : uses) {
    used += count > 0 ? 1 : 0;
    all += count;
  }
  for (const double count : uses) {
    if (count > 0) entropy -= count / all * std::log(count / all);
  }
  if (all > 0) {
    record.emplace_back("codebook_usage", used / static_cast<double>(codes_));
    record.emplace_back("codebook_perplexity", std::exp(entropy));
  }
  *this = VaeDiagnostics(codes_);
  return record;
}

void check_results_folder(const TrainVaeConfig& config) {
  if (!config.train.results_folder) return;  // the tracker looks at its own
  const std::optional<std::string> why = why_not_writable(*config.train.results_folder);
  if (!why) return;
  throw ConfigError(
      "/train/results_folder: {}\n  Choose another folder, or make that place writable for this user.",
      *why);
}

/// Before anything is made.
static SessionOptions checked_options(const LoadedVaeConfig& loaded, const RunProcess& process) {
  check_results_folder(loaded.config);
  return session_options(loaded, process);
}

VaeRun::VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process)
    : TrainingRun({.session = checked_options(loaded, process),
                   .texts = {.kind = "vae",
                             .raw_json = loaded.raw_json,
                             .full_json = public_config(loaded.full_json)},
                   .metrics = metric_names(loaded.config.vae),
                   .suspects = "pictures that are not like the others, and a learning rate that is "
                               "too high"},
                  std::make_unique<VaePosition>(),
                  [&](const at::Device& device) { return make_trainer(loaded, device); }),
      config_(loaded.config),
      data_(config_.data, config_.vae.channels, config_.seed),
      position_(position_as<VaePosition>()),
      trainer_(trainer_as<VaeTrainer>()),
      diagnostics_(config_.vae.codes()) {
  ProcessGroup& group = session_.group();
  if (group.is_alone()) return;
  trainer_.vae()->quantizer()->set_ranks(
      {.rank = group.rank(), .size = group.size(), .sum = [&group](at::Tensor& tensor) {
         group.all_reduce(tensor, Reduction::kSum, "codes");
       }});
}

void VaeRun::open() {
  session_.print_precision(trainer_.precision());
  log_info("data",
           "pictures: {} train, {} val; batches of {}{}",
           with_commas(data_.rows("train")),
           with_commas(data_.rows("val")),
           config_.data.batch_size,
           of_each_rank(session_.group()));
  checkpoints_.set_data_size({data_.files(), "picture"});
}

int64_t VaeRun::epochs() const {
  const int64_t batches_of_step =
      config_.train.grad_accum_every * (trainer_.has_discriminator() ? 2 : 1);
  const int64_t pictures = (config_.train.num_train_steps - position_.step) * batches_of_step *
                           config_.data.batch_size * session_.group_size();
  const int64_t of_epoch = data_.rows("train");
  const int64_t needed = position_.epoch + (position_.row + pictures + of_epoch - 1) / of_epoch;
  return std::min(config_.train.epochs, needed);
}

LogRecord VaeRun::step_values(double samples_per_second) {
  LogRecord record = {{"samples_per_second", samples_per_second},
                      {"samples_seen", position_.samples_seen}};
  for (auto& value : diagnostics_.take(session_.group())) {
    record.push_back(std::move(value));
  }
  return record;
}

}  // namespace dalle2
