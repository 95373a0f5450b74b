// SPDX-License-Identifier: MIT
#include "run/vae_run.h"

#include <torch/types.h>

#include <cmath>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pth.h"
#include "io/folder_names.h"
#include "run/device_copy.h"
#include "run/pictures.h"

namespace dalle2 {
namespace {

/// Pictures of a grid: a sheet that people can look at.
constexpr int64_t kMostGridPictures = 16;

/// Whether a run leaves files of that name among its results: "100.png", "100.ema.png",
/// "vae.100.pt", "vae.100.ema.pt".
bool is_result(std::string_view name) {
  const bool is_model = name.starts_with("vae.");
  if (is_model) name.remove_prefix(4);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view ending = name.substr(digits);
  if (digits == 0) return false;
  return is_model ? ending == ".pt" || ending == ".ema.pt"
                  : ending == ".png" || ending == ".ema.png";
}

}  // namespace

ExitCode VaeRun::run_epochs() {
  while (!is_done() && position_.epoch < config_.train.epochs) {
    if (!train_epoch()) continue;  // it went back
    if (session_.stop_asked()) return ExitCode::kStopped;
    if (is_done()) break;
    ++position_.epoch;
    position_.restart_epoch();
    dropped_in_epoch_.clear();
  }
  save_latest();
  log_info("train", "training complete");
  return ExitCode::kDone;
}

/// @return false if the run went back to a checkpoint
bool VaeRun::train_epoch() {
  restart_step_clock();
  const bool from_begin = position_.row == 0;
  const int64_t seen_before = position_.samples_seen;
  auto next = steps_from(position_.row, [this](int64_t row) { return next_batch("train", row); });
  while (!is_done()) {
    const auto group = next_group(next);
    if (group.empty()) break;
    checkpoints_.check();
    const bool is_discriminators = position_.discriminator_is_due;
    const int64_t part = is_discriminators ? VaeTrainer::kDiscriminator : VaeTrainer::kAutoencoder;
    const auto samples = pass_group(
        group, {part}, [&](const VaeRankBatch& each, int64_t, double share) { pass(each, share); });
    if (!samples) return true;
    for (const VaeRankBatch& each : group) position_.row += each.rows_of_step;
    position_.samples_seen += *samples;
    if (*samples == 0) continue;  // none of the files could be read
    // Before the update, so that the averages take the codes of this step.
    trainer_.vae()->quantizer()->learn(session_.generator("codes", position_.epoch, position_.row));
    update(part);
    position_.discriminator_is_due = !is_discriminators && has_gan();
    if (!position_.discriminator_is_due && !end_step(*samples)) return false;
    if (session_.stop_asked()) return true;
  }
  session_.progress().finish();
  if (from_begin && position_.samples_seen == seen_before && !is_done()) {
    throw DataError(
        "/data/folder: {}: none of the {} pictures to train with can be read; the warnings above "
        "say what is wrong with them",
        printable(config_.data.folder),
        data_.rows("train"));
  }
  return guard_.look(/*settled=*/true);
}

/// The discriminator's part of a step begins with the step that its loss counts from.
bool VaeRun::has_gan() const {
  return trainer_.has_discriminator() && position_.step >= config_.train.discr_start_step;
}

std::optional<VaeRankBatch> VaeRun::next_batch(const std::string& split, int64_t row) {
  const int64_t of_each = config_.data.batch_size;
  auto batch = rank_batch<ImageBatch>(
      session_.group(), data_.rows(split), row, of_each, [&](int64_t first, int64_t count) {
        auto found = data_.batch(split, position_.epoch, first, count);
        data_.read_ahead(split, position_.epoch, first + session_.group().size() * count, count);
        return found;
      });
  if (batch) batch->batch.drops.report(split, dropped_, dropped_in_epoch_);
  return batch;
}

/// Gradients of this rank's share of a batch, for the part whose turn it is.
void VaeRun::pass(const VaeRankBatch& batch, double share) {
  at::Tensor images = batch.batch.images;
  copy_to_device(session_.device(), {&images});
  const at::Generator random = session_.generator("train", position_.epoch, batch.row);
  if (!position_.discriminator_is_due) {
    diagnostics_.add(trainer_.step_autoencoder(images, random, has_gan(), share));
    return;
  }
  const int64_t every = config_.train.apply_grad_penalty_every;
  const bool with_penalty = every > 0 && position_.step % every == 0;
  trainer_.step_discriminator(images, random, with_penalty, share);
}

/// What follows the updates of a step. @return false if the run went back to a checkpoint
bool VaeRun::end_step(int64_t samples) {
  diagnostics_.count_step();
  if (!after_update(samples)) return false;
  const int64_t step = position_.step++;
  if (step % config_.train.save_results_every == 0) save_results();
  if (step % config_.train.save_model_every == 0 && !guard_.in_a_streak()) {
    save_model_files();
    save_latest();
  }
  return true;
}

std::string VaeRun::result_path(const std::string& name) const {
  const std::filesystem::path own = std::filesystem::path(config_.tracker.data_path) / "results";
  return (config_.train.results_folder ? std::filesystem::path(*config_.train.results_folder)
                                       : own) /
         name;
}

void VaeRun::clear_results() {
  std::error_code ignored;
  const bool is_there = std::filesystem::is_directory(result_path(""), ignored);
  if (!session_.group().is_main() || !is_there) return;
  int64_t removed = 0;
  for (const std::string& path : files_in_folder(result_path(""))) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (!is_result(name)) continue;
    std::error_code error;
    if (!std::filesystem::remove(path, error)) {
      throw DataError("--clear-results: {}: {}", path, error.message());
    }
    ++removed;
  }
  log_info(
      "train", "--clear-results: {} removed from {}", counted(removed, "file"), result_path(""));
}

/// As `step` of the file's name, the one that was just made.
void VaeRun::save_results() {
  session_.progress().pause();
  const HeldAverages averages = trainer_.hold_averages();
  const double live = validation_loss(/*averaged=*/false);
  const double loss = trainer_.uses_ema() ? validation_loss(/*averaged=*/true) : live;
  LogRecord record = {{"validation_reconstruction_loss", live}};
  if (trainer_.uses_ema()) record.emplace_back("ema_validation_reconstruction_loss", loss);
  session_.tracker().log(
      record, trainer_.first_steps(), ShownRecord{{.label = "validation loss", .values = {loss}}});
  session_.together("reconstructions", [&] {
    if (!session_.group().is_main()) return;
    const int64_t count = std::min(kMostGridPictures, config_.data.batch_size);
    const auto batch = data_.batch("val", 0, 0, count);
    if (!batch || batch->size() == 0) return;
    if (trainer_.uses_ema()) save_grid(batch->images, /*averaged=*/true);
    save_grid(batch->images, /*averaged=*/false);
  });
  if (std::isfinite(loss) &&
      (position_.best_validation_loss == 0 || loss < position_.best_validation_loss)) {
    position_.best_validation_loss = loss;
    checkpoints_.save(/*is_best=*/true, /*is_latest=*/false);
  }
  restart_step_clock();
}

/// Pictures on the left, what the VAE makes of them on the right.
void VaeRun::save_grid(const at::Tensor& images, bool averaged) {
  const at::Tensor made = trainer_.reconstruct(images, averaged).clamp(0, 1);
  std::vector<at::Tensor> pairs;
  for (int64_t i = 0; i < images.size(0); ++i) pairs.insert(pairs.end(), {images[i], made[i]});
  const Image grid = to_picture(image_grid(pairs, 2));
  const std::string name = fmt::format("{}{}.png", position_.step - 1, averaged ? ".ema" : "");
  std::filesystem::create_directories(std::filesystem::path(result_path(name)).parent_path());
  write_png(result_path(name), grid);
  session_.tracker().log_images({{encode_png(grid), "picture | reconstruction"}},
                                averaged ? "ema_reconstructions" : "reconstructions",
                                trainer_.first_steps());
}

double VaeRun::validation_loss(bool averaged) {
  const auto loss = mean_loss_of_split(
      "val",
      std::min(config_.train.validation_samples, data_.rows("val")),
      [this](int64_t row) { return next_batch("val", row); },
      [&](const VaeRankBatch& step) {
        return trainer_.evaluate(step.batch.images, averaged).reconstruction.item<double>();
      });
  return loss.value_or(std::nan(""));
}

/// The live weights as the reference's `torch.save(vae.state_dict())`, and its average as that of an
/// ema_pytorch.EMA around the whole VAE.
void VaeRun::save_model_files() {
  const ProcessGroup::BusyScope busy(session_.group(), "saving the model");
  const HeldAverages averages = trainer_.hold_averages();
  const Dict averaged = trainer_.uses_ema() ? trainer_.model_state() : Dict();
  if (!session_.group().is_main()) return;
  const StateDict live = state_dict(*trainer_.vae());
  const int64_t step = position_.step - 1;
  const std::string path = result_path(fmt::format("vae.{}.pt", step));
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_pth(path, to_dict(live));
  if (!trainer_.uses_ema()) return;
  StateDict wrapper = {{"initted", at::scalar_tensor(true, at::kBool)},
                       {"step", at::scalar_tensor(trainer_.steps(), at::kLong)}};
  for (const auto& [name, tensor] : live) wrapper.emplace_back("online_model." + name, tensor);
  for (const auto& [name, tensor] : Cursor(Value(averaged), path).at("model").as_state_dict()) {
    wrapper.emplace_back("ema_model." + name, tensor);
  }
  write_pth(result_path(fmt::format("vae.{}.ema.pt", step)), to_dict(wrapper));
}

}  // namespace dalle2
