// SPDX-License-Identifier: MIT
// What a VAE's run leaves in its folder of results: grids of reconstructions and model files, under
// the names of muse's trainer.
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "data/pictures/planes.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image.h"
#include "run/device/device.h"
#include "run/pictures/pictures.h"
#include "run/vae/vae_run.h"

namespace dalle2 {
namespace {

/// Pictures of a grid: a sheet that people can look at.
constexpr int64_t kMostGridPictures = 16;

}  // namespace

std::string VaeRun::result_path(const std::string& name) const {
  const std::string own = session_.tracker().in_data_path(kResultsFolder);
  return (std::filesystem::path(config_.train.results_folder.value_or(own)) / name).string();
}

/// A stop may come in each of these, or between two: then a resume does all of them again. The state is
/// saved before a picture is drawn.
void VaeRun::finish_step() {
  const int64_t step = position_.last_step();
  const auto is_every = [step](int64_t steps) { return step >= 0 && step % steps == 0; };
  const bool has_results = is_every(config_.train.save_results_every);
  const bool has_model = is_every(config_.train.save_model_every);
  if (!has_results && !has_model) return;
  act([&] {
    if (has_results) validate();
    if (has_model && !guard_.in_a_streak()) save_model();
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
  save_if_best(loss, position_.best_validation_loss);
  restart_step_clock();
}

double VaeRun::validation_loss(bool averaged) {
  const auto loss = mean_loss_of_split(
      "val",
      std::min(config_.train.validation_samples, data_.rows("val")),
      [this](int64_t row) { return next_batch("val", row); },
      [&](const VaeRankBatch& step) {
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

}  // namespace dalle2
