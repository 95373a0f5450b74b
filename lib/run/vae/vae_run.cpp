// SPDX-License-Identifier: MIT
#include "run/vae/vae_run.h"

#include <torch/types.h>

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "data/pictures/planes.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "run/device/device.h"
#include "run/pictures/pictures.h"

namespace dalle2 {
namespace {

/// Pictures of a grid: a sheet that people can look at.
constexpr int64_t kMostGridPictures = 16;

}  // namespace

void VaeRun::open_epoch() {
  RowRun::open_epoch();
  epochs_ = counted_epochs();
}

void VaeRun::end_epochs() {
  if (position_.actions_due != 0) after_step();  // a stop cut them off, after the last step
  save_model();                                  // the last one, whatever its number
  log_info("train", "training complete");        // the reference's last words
}

/// The discriminator's part of a step begins with the step that its loss counts from.
bool VaeRun::has_gan() const {
  return trainer_.has_discriminator() && position_.step >= config_.train.discr_start_step;
}

/// All batches of a step are read before it begins: a stop finds it either not begun or ended.
bool VaeRun::read_group() {
  discriminators_.clear();
  if (is_done() || !RowRun::read_group()) return false;
  codes_row_ = after_.row;
  if (has_gan() && samples_of(group_) > 0) discriminators_ = discriminators_group_from(after_);
  return true;
}

/// The next group with samples, of the next epoch if this one has no more.
std::vector<VaeRun::Step> VaeRun::discriminators_group_from(Place& place) {
  const int64_t last_epoch = place.epoch + 1;
  while (place.epoch <= last_epoch) {
    std::vector<Step> group = next_group_from(place);
    if (samples_of(group) > 0) return group;
    session_.throw_if_stop_asked();
    if (group.empty()) place = {place.epoch + 1, 0};
  }
  from_outside([this] { data_.throw_nothing_usable(); });
  return {};
}

/// Each batch with the generator of its place, so that a resumed run draws the same.
std::vector<VaeBatch> VaeRun::batches_of(const std::vector<Step>& group, int64_t epoch) {
  std::vector<VaeBatch> batches;
  for (const Step& each : group) {
    VaeBatch& batch = batches.emplace_back();
    batch.share = share_of(each, group);
    if (each.size() == 0) continue;
    batch.images = [this, images = each.batch.images] {
      at::Tensor copied = images;
      copy_to_device(session_.device(), {&copied});
      return copied;
    };
    batch.random = session_.generator("train", epoch, each.row);
  }
  return batches;
}

/// The whole step, with its updates. @return samples of its last group: the rate is that of a part
std::optional<int64_t> VaeRun::accumulate() {
  const int64_t samples = samples_of(group_);
  if (samples == 0) return 0;
  VaeGroups groups{.autoencoder = batches_of(group_, position_.epoch),
                   .codes = session_.generator("codes", position_.epoch, codes_row_)};
  if (!discriminators_.empty()) {
    groups.discriminator = batches_of(discriminators_, after_.epoch);
    groups.discriminator_codes = session_.generator("codes", after_.epoch, after_.row);
    const int64_t every = config_.train.apply_grad_penalty_every;
    groups.with_penalty = every > 0 && position_.step % every == 0;
  }
  session_.throw_if_stop_asked();
  for (const VaeLosses& losses : trainer_.step(groups))
    position_.diagnostics.add(losses, config_.vae.codes());
  position_.diagnostics.end_update(
      session_.group(), session_.device(), config_.vae.codes(), config_.train.log_every_n_updates);
  return discriminators_.empty() ? samples : samples_of(discriminators_);
}

void VaeRun::advance() {
  if (!discriminators_.empty()) position_.samples_seen += samples_of(group_);
  RowRun::advance();
}

bool VaeRun::update_parts(int64_t samples) {
  if (samples == 0) return false;  // none of the files could be read
  note_loss(VaeTrainer::kAutoencoder);
  if (!discriminators_.empty()) note_loss(VaeTrainer::kDiscriminator);
  ++position_.step;
  return true;
}

int64_t VaeRun::epochs() const {
  return epochs_ > 0 ? epochs_ : counted_epochs();
}

/// From a position between two steps.
int64_t VaeRun::counted_epochs() const {
  const auto divided_up = [](int64_t count, int64_t by) { return (count + by - 1) / by; };
  // An epoch ends with a short batch, and with a short group of batches.
  const int64_t rows_of_part =
      config_.train.grad_accum_every * config_.data.batch_size * session_.group().size();
  const int64_t of_epoch = data_.rows("train"), steps = config_.train.num_train_steps;
  int64_t parts = steps - position_.step;
  if (trainer_.has_discriminator()) {
    parts += std::max<int64_t>(steps - std::max(position_.step, config_.train.discr_start_step), 0);
  }
  parts -= divided_up(std::max<int64_t>(of_epoch - position_.loader.row, 0), rows_of_part);
  const int64_t later = divided_up(std::max<int64_t>(parts, 0), divided_up(of_epoch, rows_of_part));
  return std::min(config_.train.epochs, position_.epoch + 1 + later);
}

std::string VaeRun::result_path(const std::string& name) const {
  const std::string own = session_.tracker().in_data_path(kResultsFolder);
  return (std::filesystem::path(config_.train.results_folder.value_or(own)) / name).string();
}

/// A stop may come in each of these, or between two: then a resume does all of them again. The state is
/// saved before a picture is drawn.
void VaeRun::after_step() {
  const int64_t step = position_.last_step();
  const auto is_every = [step](int64_t steps) { return step >= 0 && step % steps == 0; };
  const bool has_results = is_every(config_.train.save_results_every);
  const bool has_model = is_every(config_.train.save_model_every);
  if (!has_results && !has_model) return;
  act([&] {
    if (has_results) validate();
    if (has_model && !checkpoints_.is_amid_skips()) save_model();
    if (has_results) save_grids();
  });
}

/// The losses of the validation pictures, and the checkpoint if they are the best so far.
void VaeRun::validate() {
  session_.progress().pause();
  const HeldAverages averages = trainer_.hold_averages();
  const double live = validation_loss(/*averaged=*/false);
  const double loss = trainer_.uses_ema() ? validation_loss(/*averaged=*/true) : live;
  LogRecord record = {{"validation_reconstruction_loss", live}};
  if (trainer_.uses_ema()) record.emplace_back("ema_validation_reconstruction_loss", loss);
  session_.tracker().log(
      record, trainer_.first_steps(), ShownRecord{{.label = "validation loss", .values = {loss}}});
  if (save_if_best(loss, position_.best_validation_loss.value_or(INFINITY)))
    position_.best_validation_loss = loss;
  restart_step_clock();
}

double VaeRun::validation_loss(bool averaged) {
  DropCounts dropped;
  const auto loss =
      mean_loss_of_split("val",
                         std::min(config_.train.validation_samples, data_.rows("val")),
                         dropped,
                         [&](const Step& step) {
                           at::Tensor images = step.batch.images;
                           copy_to_device(session_.device(), {&images});
                           return trainer_.evaluate(images, averaged).reconstruction_loss;
                         });
  return loss.value_or(std::nan(""));
}

void VaeRun::save_grids() {
  const HeldAverages averages = trainer_.hold_averages();
  session_.together("reconstructions", [&] {
    if (!session_.group().is_main()) return;
    const int64_t count = std::min(kMostGridPictures, config_.data.batch_size);
    const auto batch = from_outside([&] { return data_.batch("val", 0, 0, count); });
    if (!batch || batch->size() == 0) return;
    const at::Tensor images = as_floats(batch->images);
    if (trainer_.uses_ema()) save_grid(images, /*averaged=*/true);
    save_grid(images, /*averaged=*/false);
  });
  restart_step_clock();
}

/// Pictures on the left, what the VAE makes of them on the right.
void VaeRun::save_grid(const at::Tensor& images, bool averaged) {
  const at::Tensor made = trainer_.evaluate(images, averaged).images.cpu().clamp(0, 1);
  std::vector<at::Tensor> pairs;
  for (int64_t i = 0; i < images.size(0); ++i) pairs.insert(pairs.end(), {images[i], made[i]});
  const std::string png = encode_png(to_picture(image_grid(pairs, 2)));
  const std::string name = fmt::format("{}{}.png", position_.last_step(), averaged ? ".ema" : "");
  session_.tracker().store(result_path(name),
                           [&](const std::string& path) { write_file_atomically(path, png); });
  session_.tracker().log_images({{.png = png, .caption = "picture | reconstruction", .name = name}},
                                averaged ? "ema_reconstructions" : "reconstructions",
                                trainer_.first_steps());
}

/// The live weights as muse's `torch.save(vae.state_dict())`, their average as that of an
/// ema_pytorch.EMA around the whole VAE; then the state.
void VaeRun::save_model() {
  {
    const ProcessGroup::BusyScope busy(session_.group(), "saving the model");
    const HeldAverages averages = trainer_.hold_averages();
    const Dict averaged = trainer_.uses_ema() ? trainer_.model_state() : Dict();
    if (session_.group().is_main()) write_model(averaged);
  }
  save_latest();
}

/// @param averaged what Trainer::model_state() gives; empty without averages
void VaeRun::write_model(const Dict& averaged) {
  const int64_t step = position_.last_step();
  const auto store = [&](const std::string& name, const StateDict& weights) {
    session_.tracker().store(result_path(name),
                             [&](const std::string& path) { write_pth(path, to_dict(weights)); });
  };
  const StateDict live = state_dict(*trainer_.vae());
  store(fmt::format("vae.{}.pt", step), live);
  if (!trainer_.uses_ema()) return;
  StateDict wrapper = {{"initted", at::scalar_tensor(true, at::kBool)},
                       {"step", at::scalar_tensor(trainer_.steps(), at::kLong)}};
  for (const auto& [name, tensor] : live) wrapper.emplace_back("online_model." + name, tensor);
  const Value model(averaged);
  for (const auto& [name, tensor] : Cursor(model).at("model").as_state_dict()) {
    wrapper.emplace_back("ema_model." + name, tensor);
  }
  store(fmt::format("vae.{}.ema.pt", step), wrapper);
}

LogRecord VaeRun::step_values(double samples_per_second) {
  LogRecord record = {{"samples_per_second", samples_per_second},
                      {"samples_seen", position_.samples_seen}};
  for (auto& value : position_.diagnostics.take(session_.group())) {
    record.push_back(std::move(value));
  }
  return record;
}

void VaePosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("step", step);
  visitor.field("samples_seen", samples_seen);
  visitor.own("best_validation_loss", best_validation_loss);
  diagnostics.fields(visitor);
}

std::string VaePosition::description() const {
  return fmt::format("step {}, epoch {}, having seen {} samples", step, epoch, samples_seen);
}

}  // namespace dalle2
