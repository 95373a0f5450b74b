// SPDX-License-Identifier: MIT
// What a run of a VAE is made of and does, what `evaluate` and `--dry-run` say of it, and the first config of
// `init`.
#include "run/vae/vae_run.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "data/pictures/preprocess.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/writable.h"
#include "io/pictures/image.h"
#include "metrics/script/script_archive.h"
#include "model/random.h"
#include "run/checkpoints/model_weights.h"
#include "run/device/device.h"
#include "run/dry_run.h"
#include "run/init/first_config.h"
#include "run/kinds.h"
#include "run/pictures/pictures.h"
#include "trainer/trained_part.h"

namespace dalle2 {
namespace {

/// With /train/deterministic LibTorch refuses the gradients of some operations on a GPU: that shall be
/// known before a run has begun.
/// @param some features of pictures that want gradients
void check_deterministic(const at::Tensor& some, const std::string& path) {
  if (!at::globalContext().deterministicAlgorithms()) return;
  try {
    some.sum().backward();
  } catch (const std::exception& error) {
    throw ConfigError(
        "/train/deterministic: the gradients of the network in {} (/train/vgg_path) have no "
        "deterministic form on this device: \"{}\"\n  A network made by this version's "
        "scripts/export_vgg.py has one: make it again, or set /train/deterministic to false.",
        path,
        last_message(error));
  }
}

std::unique_ptr<VaeTrainer> make_trainer(const LoadedVaeConfig& loaded, const at::Device& device) {
  torch::manual_seed(static_cast<uint64_t>(loaded.config.seed));
  ImageFeatures features = perceptual_features(loaded.config, device);
  VqganVae vae(loaded.config.vae);
  auto trainer =
      std::make_unique<VaeTrainer>(vae, loaded.config.train, std::move(features), device);
  log_parameters(count_parameters(*vae));
  return trainer;
}

at::Tensor made_up_images(const TrainVaeConfig& config, int64_t batch) {
  const int64_t side = config.data.image_size;
  return at::rand({batch, config.vae.channels, side, side},
                  make_generator({.purpose = "dry run"}, at::kCPU));
}

DryRunPlan make_plan(const LoadedVaeConfig& loaded) {
  const TrainVaeConfig& config = loaded.config;
  VqganVae vae(config.vae);
  const ImageFeatures features = perceptual_features(config, at::kCPU);
  const auto generator = [] { return make_generator({.purpose = "dry run"}, at::kCPU); };
  DryRunPlan plan{.model = vae.ptr(), .batch_size = config.data.batch_size, .has_lanes = false};
  plan.networks.push_back({.label = "autoencoder",
                           .note = fmt::format("{} px", config.data.image_size),
                           .module = vae->autoencoder(),
                           .step = [=](int64_t batch) mutable {
                             vae->autoencoder_losses(
                                    made_up_images(config, batch), features, generator())
                                 .total.backward();
                           }});
  if (vae->discriminator()) {
    plan.networks.push_back(
        {.label = "discriminator",
         .note = "",
         .prefix = "discr.",
         .module = vae->discriminator(),
         .step = [=](int64_t batch) mutable {
           vae->discriminator_loss(made_up_images(config, batch), generator()).backward();
         }});
  }
  plan.texts = config_texts(loaded);
  return plan;
}

void check_results_folder(const TrainVaeConfig& config) {
  if (!config.train.results_folder) return;  // the tracker looks at its own
  const std::string& results = *config.train.results_folder;
  // What a run draws in its data_path is known as such; elsewhere the next start would take it for data.
  const std::filesystem::path own =
      std::filesystem::path(config.tracker.data_path) / kResultsFolder;
  const std::filesystem::path canonical = canonical_folder(results);
  if (!is_in_folder(canonical, canonical_folder(own)) &&
      is_in_folder(canonical, canonical_folder(config.data.folder))) {
    throw ConfigError(
        "/train/results_folder '{}' is in /data/folder '{}': the next start would train on what this one "
        "draws\n  Choose a folder elsewhere, or null for {}.",
        results,
        config.data.folder,
        own.string());
  }
  const std::optional<std::string> why = why_not_writable(results);
  if (!why) return;
  throw ConfigError(
      "/train/results_folder: {}\n  Choose another folder, or make that place writable for this user.",
      *why);
}

/// Of the parts: muse's trainer logs `loss` and `discr_loss`.
std::vector<PartMetricNames> metric_names(const VaeConfig& config) {
  std::vector<PartMetricNames> names = {{"", NameStyle::kUnderscore, "loss"}};
  if (config.use_vgg_and_gan) names.push_back({"discr_", NameStyle::kUnderscore, "loss"});
  return names;
}

/// The folder is looked at before anything is made.
RunPlan checked_plan(const LoadedVaeConfig& loaded, const RunProcess& process) {
  check_results_folder(loaded.config);
  return run_plan(loaded,
                  process,
                  metric_names(loaded.config.vae),
                  "pictures that are not like the others, and a learning rate that is too high");
}

/// Pictures of a grid: a sheet that people can look at.
constexpr int64_t kMostGridPictures = 16;

class VaeRun : public RowRun<ImageFolder> {
 public:
  VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process)
      : RowRun(
            checked_plan(loaded, process),
            std::make_unique<VaePosition>(),
            [&](const at::Device& device) { return make_trainer(loaded, device); },
            loaded.config.data.batch_size,
            [&config = loaded.config](const at::Device& device) {
              return ImageFolder(config.data, config.vae.channels, config.seed, gpu_of(device));
            }),
        config_(loaded.config),
        position_(position_as<VaePosition>()),
        trainer_(trainer_as<VaeTrainer>()) {
    position_.rows = data_.rows("train");
    if (config_.train.results_folder)
      session_.tracker().add_folder(*config_.train.results_folder, "/train/results_folder");
    ProcessGroup& group = session_.group();
    if (group.is_alone()) return;
    trainer_.vae()->quantizer()->set_ranks(
        {.rank = group.rank(),
         .size = group.size(),
         .sum =
             [&group](at::Tensor& tensor) { group.all_reduce(tensor, Reduction::kSum, "codes"); },
         .exchange =
             [&group](int64_t own) {
               std::vector<int64_t> all;
               for (const auto& row : group.exchange({own}, "vectors for codes"))
                 all.push_back(row[0]);
               return all;
             }});
  }

  void open() override {
    TrainingRun::open();
    log_info("data",
             "pictures: {} train, {} val; batches of {}{}",
             with_commas(data_.rows("train")),
             with_commas(data_.rows("val")),
             config_.data.batch_size,
             of_each_rank(session_.group()));
    session_.check_same_data(data_.names(), "pictures", "/data/folder");
    data_.check_usable();
    checkpoints_.set_data_size({data_.files(), "picture"});
  }

 private:
  void repeat_actions() override { after_step(); }
  void open_epoch() override {
    RowRun::open_epoch();
    epochs_ = counted_epochs();
  }
  /// All batches of a step are read before it begins: a stop finds it either not begun or ended.
  bool read_group() override {
    discriminators_.clear();
    if (is_done() || !RowRun::read_group()) return false;
    codes_row_ = after_.row;
    // The discriminator's part of a step begins with the step that its loss counts from.
    if (trainer_.has_discriminator() && position_.step >= config_.train.discr_start_step &&
        samples_of(group_) > 0)
      discriminators_ = discriminators_group_from(after_);
    return true;
  }
  /// The whole step, with its updates. @return samples of its last group: the rate is that of a part
  std::optional<int64_t> accumulate() override {
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
    position_.diagnostics.end_update(session_.group(),
                                     session_.device(),
                                     config_.vae.codes(),
                                     config_.train.log_every_n_updates);
    return discriminators_.empty() ? samples : samples_of(discriminators_);
  }
  void advance() override {
    if (!discriminators_.empty()) position_.samples_seen += samples_of(group_);
    RowRun::advance();
  }
  bool update_parts(int64_t samples) override {
    if (samples == 0) return false;  // none of the files could be read
    note_loss(VaeTrainer::kAutoencoder);
    if (!discriminators_.empty()) note_loss(VaeTrainer::kDiscriminator);
    ++position_.step;
    return true;
  }
  /// A stop may come in each of these, or between two: then a resume does all of them again. The state is
  /// saved before a picture is drawn.
  void after_step() override {
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
  void end_epochs() override {
    if (position_.actions_due != 0) after_step();  // a stop cut them off, after the last step
    save_model();                                  // the last one, whatever its number
    log_info("train", "training complete");        // the reference's last words
  }
  [[noreturn]] void throw_nothing_usable() const override { data_.throw_nothing_usable(); }
  bool is_done() const { return position_.step >= config_.train.num_train_steps; }
  /// The next group with samples, of the next epoch if this one has no more.
  std::vector<Step> discriminators_group_from(Place& place) {
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
  std::vector<VaeBatch> batches_of(const std::vector<Step>& group, int64_t epoch) {
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
  /// The losses of the validation pictures, and the checkpoint if they are the best so far.
  void validate() {
    session_.progress().pause();
    const HeldAverages averages = trainer_.hold_averages();
    const double live = validation_loss(/*averaged=*/false);
    const double loss = trainer_.uses_ema() ? validation_loss(/*averaged=*/true) : live;
    LogRecord record = {{"validation_reconstruction_loss", live}};
    if (trainer_.uses_ema()) record.emplace_back("ema_validation_reconstruction_loss", loss);
    session_.tracker().log(record,
                           trainer_.first_steps(),
                           ShownRecord{{.label = "validation loss", .values = {loss}}});
    if (save_if_best(loss, position_.best_validation_loss.value_or(INFINITY)))
      position_.best_validation_loss = loss;
    since_step_.restart();
  }
  double validation_loss(bool averaged) {
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
  void save_grids() {
    const HeldAverages averages = trainer_.hold_averages();
    const auto draw = [&] {
      const int64_t count = std::min(kMostGridPictures, config_.data.batch_size);
      const auto batch = from_outside([&] { return data_.batch("val", 0, 0, count); });
      if (!batch || batch->size() == 0) return;
      const at::Tensor images = as_floats(batch->images);
      if (trainer_.uses_ema()) save_grid(images, /*averaged=*/true);
      save_grid(images, /*averaged=*/false);
    };
    session_.together("reconstructions", draw, {.on_main = true});
    since_step_.restart();
  }
  /// Pictures on the left, what the VAE makes of them on the right.
  void save_grid(const at::Tensor& images, bool averaged) {
    const at::Tensor made = trainer_.evaluate(images, averaged).images.cpu().clamp(0, 1);
    std::vector<at::Tensor> pairs;
    for (int64_t i = 0; i < images.size(0); ++i) pairs.insert(pairs.end(), {images[i], made[i]});
    const std::string png = encode_png(to_picture(image_grid(pairs, 2)));
    const std::string name = fmt::format("{}{}.png", position_.last_step(), averaged ? ".ema" : "");
    session_.tracker().store(result_path(name),
                             [&](const std::string& path) { write_file_atomically(path, png); });
    session_.tracker().log_images(
        {{.png = png, .caption = "picture | reconstruction", .name = name}},
        averaged ? "ema_reconstructions" : "reconstructions",
        trainer_.first_steps());
  }
  /// The live weights as muse's `torch.save(vae.state_dict())`, their average as that of an
  /// ema_pytorch.EMA around the whole VAE; then the state.
  void save_model() {
    {
      const ProcessGroup::BusyScope busy(session_.group(), "saving the model");
      const HeldAverages averages = trainer_.hold_averages();
      const Dict averaged = trainer_.uses_ema() ? trainer_.model_state() : Dict();
      if (session_.group().is_main()) write_model(averaged);
    }
    save_latest();
  }
  /// @param averaged what Trainer::model_state() gives; empty without averages
  void write_model(const Dict& averaged) {
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
    for (const auto& [name, tensor] : Cursor(model).at("model").as_state_dict())
      wrapper.emplace_back("ema_model." + name, tensor);
    store(fmt::format("vae.{}.ema.pt", step), wrapper);
  }
  LogRecord step_values(double samples_per_second) override {
    LogRecord record = {{"samples_per_second", samples_per_second},
                        {"samples_seen", position_.samples_seen}};
    for (auto& value : position_.diagnostics.take(session_.group()))
      record.push_back(std::move(value));
    return record;
  }
  int64_t epochs() const override { return epochs_ > 0 ? epochs_ : counted_epochs(); }
  /// From a position between two steps.
  int64_t counted_epochs() const {
    const auto divided_up = [](int64_t count, int64_t by) { return (count + by - 1) / by; };
    // An epoch ends with a short batch, and with a short group of batches.
    const int64_t rows_of_part =
        config_.train.grad_accum_every * config_.data.batch_size * session_.group().size();
    const int64_t of_epoch = data_.rows("train"), steps = config_.train.num_train_steps;
    int64_t parts = steps - position_.step;
    if (trainer_.has_discriminator()) {
      parts +=
          std::max<int64_t>(steps - std::max(position_.step, config_.train.discr_start_step), 0);
    }
    parts -= divided_up(std::max<int64_t>(of_epoch - position_.loader.row, 0), rows_of_part);
    const int64_t later =
        divided_up(std::max<int64_t>(parts, 0), divided_up(of_epoch, rows_of_part));
    return std::min(config_.train.epochs, position_.epoch + 1 + later);
  }
  bool has_trained_all() const override {
    return is_done() || position_.epoch >= config_.train.epochs;
  }
  std::string result_path(const std::string& name) const {
    const std::string own = session_.tracker().in_data_path(kResultsFolder);
    return (std::filesystem::path(config_.train.results_folder.value_or(own)) / name).string();
  }

  const TrainVaeConfig& config_;
  VaePosition& position_;
  VaeTrainer& trainer_;
  int64_t codes_row_ = 0;             // behind the autoencoder's batches: addresses its new codes
  std::vector<Step> discriminators_;  // its batches of the step; none if it has no part in it
  int64_t epochs_ = 0;                // of the run, as counted where the epoch began
};

constexpr std::array kNames = {
    "reconstruction_loss", "perceptual_loss", "generator_loss", "gan_weight", "quantizer_loss"};
constexpr auto kLosses = static_cast<int64_t>(kNames.size());
constexpr const char* kRecent = "recent_diagnostics";
constexpr const char* kUses = "code_uses";

/// [losses] in the order of kNames; NaN where the VAE has no such loss.
at::Tensor listed(const VaeLosses& losses) {
  const at::Tensor none =
      at::full({}, std::nan(""), losses.reconstruction.options().dtype(at::kFloat));
  std::vector<at::Tensor> all;
  for (const at::Tensor& loss : {losses.reconstruction,
                                 losses.perceptual,
                                 losses.generator,
                                 losses.gan_weight,
                                 losses.quantizer}) {
    all.push_back(loss.defined() ? loss.to(at::kFloat) : none);
  }
  return at::stack(all);
}

}  // namespace

ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device) {
  if (!config.vae.use_vgg_and_gan) return nullptr;
  constexpr const char* kWhere = "/train/vgg_path";
  constexpr const char* kAdvice =
      "scripts/export_vgg.py makes one from the weights that torchvision publishes.";
  const ScriptArchive archive =
      open_script_archive(config.train.vgg_path.value(), kWhere, kAdvice, device);
  const ImageFeatures features = [module = archive.module](const at::Tensor& images) {
    return floats_of(module->forward({images}));
  };
  const int64_t side = config.data.image_size;
  std::string found;
  try {
    use_own_convolutions(*archive.module, device);
    const at::Tensor some = features(
        trial_pictures(/*count=*/2, side).to(device, at::kFloat).div_(255).requires_grad_());
    const bool has_shape = some.dim() == 2 && some.size(0) == 2;
    const bool is_finite = some.isfinite().all().item<bool>();
    if (has_shape && some.requires_grad() && is_finite) {
      check_deterministic(some, archive.path);
      return features;
    }
    found = !some.requires_grad() ? "features without gradients"
            : has_shape           ? "features that are not finite (NaN or infinite)"
                                  : c10::str(some.sizes());
  } catch (const ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    found = "\"" + last_message(error) + "\"";
  }
  throw ConfigError(
      "{}: the network in {} was shown [2, 3, {}, {}]: expected features [2, F], got {}\n  {}",
      kWhere,
      archive.path,
      side,
      side,
      found,
      kAdvice);
}

std::unique_ptr<TrainingRun> make_run(const LoadedVaeConfig& loaded, const RunProcess& process) {
  return std::make_unique<VaeRun>(loaded, process);
}

/// The reconstruction of the split's pictures: mean absolute and mean square error, and the peak
/// signal-to-noise ratio of the latter, in dB. The ranks share the batches.
nlohmann::ordered_json figures_of(const LoadedVaeConfig& loaded, const Evaluation& evaluation) {
  const auto& [command, device, group] = evaluation;
  const TrainVaeConfig& config = loaded.config;
  if (command.split == "test")
    throw ConfigError("--split test: a VAE's pictures are divided into train and val");
  const Value checkpoint = read_checkpoint(command.checkpoint_path);
  const Cursor root(checkpoint, command.checkpoint_path);
  VqganVae vae = load_vae(evaluation.source(config.train), checkpoint);
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

void dry_run(const LoadedVaeConfig& loaded, int64_t processes, const StartOptions& start) {
  const TrainVaeConfig& config = loaded.config;
  check_results_folder(config);
  const ImageFolder data(config.data, config.vae.channels, config.seed);
  data.check_usable();
  DryRunPlan plan = make_plan(loaded);
  plan.data_size = {data.files(), "picture"};
  VaePosition position;
  plan.start = start;
  finish_dry_run(plan, config.tracker, config.train, position, processes, [&] {
    for (const char* split : {"train", "val"})
      print_line("{}: {}", split, counted(data.rows(split), "picture"));
    print_pictures(data.first_pictures(), decode_options(config.data, config.vae.channels));
    print_line("steps: {}", with_commas(config.train.num_train_steps));
  });
}

FirstConfig vae_first_config(const InitCommand& command) {
  constexpr int64_t kSide = 64, kLayers = 2;
  InitCommand sized = command;
  sized.image_size = command.image_size.value_or(kSide);
  VaeDataConfig config;
  config.folder = command.data;
  config.image_size = *sized.image_size;
  const ImageFolder pictures(config, /*channels=*/3, /*seed=*/0);
  const PictureTally tally = pictures.first_pictures();
  const int64_t rows = pictures.rows("train"), looked_at = std::max<int64_t>(tally.looked_at, 1);
  const FirstRecipe recipe =
      first_recipe(FirstKind::kVae, sized, rows * tally.pictures / looked_at);
  FirstConfig first{.found = {fmt::format("{} in {}, {} for training",
                                          counted(pictures.files(), "picture"),
                                          command.data,
                                          with_commas(rows))},
                    .recipe = recipe};
  if (tally.pictures < pictures.files())
    first.found.push_back(fmt::format(
        "{} looked at, {} usable", counted(tally.looked_at, "picture"), tally.pictures));
  for (std::string& line : describe(tally, reading_text(tally)))
    first.found.push_back(std::move(line));
  const std::string model = fmt::format(
      R"(    "dim": {},
    "layers": {},                         // each halves the side: {} px become {} px of codes
    "lookup_free_quantization": false,
    "codebook_size": 1024,
    "use_vgg_and_gan": false,           // true is sharper, and takes "vgg_path" in "train"
    "l2_recon_loss": true,
{}    "quantizer_loss_without_gan": true
)",
      recipe.dim,
      kLayers,
      recipe.side,
      recipe.side >> kLayers,
      channels_text(tally));
  const std::string data = fmt::format(
      R"(    "folder": {},                       // pictures, those in tar shards too
    "image_size": {},
{}{}    "preprocessing": {{               // "RandomHorizontalFlip": true between these two doubles the pictures
      "Resize": {{"size": {}}},
      "CenterCrop": {{"size": {}}},
      "ToTensor": true
    }}
)",
      json_text(command.data),
      recipe.side,
      batch_text(recipe),
      reading_text(tally),
      recipe.side,
      recipe.side);
  constexpr int64_t kSaves = 5;  // of a run
  const std::string train =
      fmt::format("    \"save_results_every\": {},\n    \"save_model_every\": {},\n",
                  std::max<int64_t>(recipe.updates / recipe.input.epochs, 1),
                  std::max<int64_t>(recipe.updates / kSaves, 1));
  first.text = first_file(command, recipe, model, data, train);
  return first;
}

void VaeDiagnostics::add(const VaeLosses& losses, int64_t codes) {
  add_to(of_update_, listed(losses));
  add_to(uses_of_update_, counts_of_codes(losses.indices.flatten(), codes));
}

void VaeDiagnostics::end_update(ProcessGroup& group,
                                const at::Device& device,
                                int64_t codes,
                                int64_t length) {
  if (!of_update_.defined()) {  // this rank had no samples
    of_update_ = at::zeros({kLosses}, at::dtype(at::kFloat).device(device));
    uses_of_update_ = at::zeros({codes}, at::dtype(at::kLong).device(device));
  }
  group.all_reduce(of_update_, Reduction::kSum, "losses that are logged");
  // Codes of what is not finite say nothing.
  add_to(own_uses_, uses_of_update_ * of_update_[0].isfinite());
  const at::Tensor row = of_update_.unsqueeze(0);
  recent_ = recent_.defined() ? at::cat({recent_.to(device), row}) : row;
  const int64_t kept = std::min(recent_.size(0), length);
  recent_ = recent_.narrow(0, recent_.size(0) - kept, kept).clone();
  of_update_.reset();
  uses_of_update_.reset();
}

void VaeDiagnostics::gather(ProcessGroup& group) {
  if (!own_uses_.defined()) return;  // on no rank then
  group.all_reduce(own_uses_, Reduction::kSum, "uses of the codes");
  const bool goes_on = uses_.defined() && uses_.numel() == own_uses_.numel();
  uses_ = goes_on ? uses_.to(own_uses_.device()) + own_uses_ : own_uses_;
  own_uses_.reset();
}

LogRecord VaeDiagnostics::take(ProcessGroup& group) {
  gather(group);
  LogRecord record;
  const at::Tensor recent =
      recent_.defined() ? recent_.to(at::kCPU, at::kDouble) : at::empty({0, kLosses}, at::kDouble);
  for (int64_t i = 0; i < kLosses; ++i) {
    const at::Tensor losses = recent.select(1, i);
    const at::Tensor finite = losses.masked_select(losses.isfinite());
    if (finite.numel() > 0)
      record.emplace_back(kNames[static_cast<size_t>(i)], finite.mean().item<double>());
  }
  const at::Tensor uses = uses_.defined() ? uses_.to(at::kCPU, at::kDouble) : at::Tensor();
  uses_.reset();
  if (!uses.defined() || uses.sum().item<double>() == 0) return record;
  const at::Tensor shares = uses / uses.sum();
  record.emplace_back("codebook_usage", uses.gt(0).to(at::kDouble).mean().item<double>());
  record.emplace_back("codebook_perplexity",
                      std::exp(-at::xlogy(shares, shares).sum().item<double>()));
  return record;
}

std::vector<PositionField> VaeDiagnostics::fields() {
  return {{kRecent, &recent_, true, {-1, kLosses}}, {kUses, &uses_, true, {-1}}};
}

}  // namespace dalle2
