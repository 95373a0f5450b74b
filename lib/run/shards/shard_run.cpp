// SPDX-License-Identifier: MIT
#include "run/shards/shard_run.h"

#include <torch/types.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "base/timer.h"
#include "config/reading/reflect.h"

namespace dalle2 {

DataSize data_size_of(const ShardData& data) {
  if (const auto pictures = data.pictures()) {
    return {.count = pictures->pictures(), .unit = "picture", .names = pictures->names()};
  }
  return {data.num_shards(), "shard"};
}

ShardRun::ShardRun(RunPlan plan,
                   const MakeTrainer& make_trainer,
                   const ShardLoopConfig& loop,
                   const ShardDataConfig& data,
                   LoaderOptions needs)
    : TrainingRun(std::move(plan), std::make_unique<ShardPosition>(), make_trainer),
      loop_(loop),
      data_config_(data),
      position_(position_as<ShardPosition>()),
      data_(data,
            session_.seed(),
            std::move(needs),
            session_.device(),
            RankInfo{session_.group().rank(), session_.group().size()}) {
  data_.keep_step_through(session_.group());
  checkpoints_.set_data_size(data_size_of(data_));
}

/// A run keeps the slices that it began with, whatever the number of ranks: see
/// ShardPosition::slices.
void ShardRun::prepare() {
  position_.slices = position_.slices_of_run();
  if (position_.slices == 0) {
    position_.slices = data_.slices_at_begin();
    if (position_.samples_seen > 0 && !data_config_.lanes && !position_.has_other_data) {
      log_warning("data",
                  "the checkpoint does not say into how many slices its run cut the shards: with "
                  "another number of processes than then, former validation shards are trained on. "
                  "/data/lanes gives the number");
    }
  }
  session_.together("looking for the shards", [&] { data_.deal(position_.slices); });
  position_.dealt = position_.slices;
  log_info("data",
           "shards: {} train, {} val, {} test; batches of {}{}",
           data_.num_shards("train"),
           data_.num_shards("val"),
           data_.num_shards("test"),
           data_config_.batch_size,
           of_each_rank(session_.group()));
  session_.check_same_data(data_.names(), "shards", "/data/webdataset_base_url");
}

/// None at the end of the data. @throws StoppedError on all ranks if a signal came while it was
/// waited for
std::optional<Batch> ShardRun::next_batch(ShardLoader& loader) {
  const ProcessGroup::BusyScope busy(session_.group(), "waiting for data");
  return loader.next();
}

/// A loader at a place of an epoch. Within together(): what one rank finds at fault ends all, at the same place.
void ShardRun::open_loader(std::unique_ptr<ShardLoader>& loader,
                           const std::string& split,
                           const LoaderPosition& from) {
  loader = data_.loader(split, data_config_.batch_size, /*in_order=*/split != "train");
  loader->start_epoch(position_.epoch, from);
}

void ShardRun::open_epoch() {
  position_.slices = data_.slices();
  if (const auto why = data_.other_shards(position_.loader)) {
    log_warning(
        "data",
        "train: the shards are not those that epoch {} began with ({}): it is unknown which "
        "samples were seen, so the epoch starts over",
        position_.epoch,
        *why);
    position_.restart_epoch();
  }
  log_info("train", "Starting epoch {}", position_.epoch);
  session_.together(
      "opening the loader",
      std::bind_front(
          &ShardRun::open_loader, this, std::ref(loader_), "train", std::cref(position_.loader)),
      {.from_outside = true});
}

bool ShardRun::read_group() {
  group_ = next_group([&, sample = position_.loader.row]() mutable -> std::optional<Batch> {
    if (sample >= loop_.epoch_samples.value_or(INT64_MAX)) return std::nullopt;
    std::optional<Batch> batch = next_batch(*loader_);
    if (batch) sample += batch->samples_of_step;
    return batch;
  });
  return !group_.empty();
}

void ShardRun::advance() {
  position_.loader = group_.back().position;
  for (const Batch& batch : group_) loader_->consumed(batch);
}

/// While updates are being skipped the weights may be at fault: they must not replace an older
/// file.
void ShardRun::after_step() {
  const bool due =
      position_.loader.row > position_.samples_at_last_save + loop_.save_every_n_samples;
  const bool first = position_.iteration == 1;
  if (!(due || (loop_.save_immediately && first)) || checkpoints_.is_amid_skips()) return;
  position_.samples_at_last_save = position_.loader.row;
  // What a stop saves is the snapshot that is due. Were it taken after the next update instead, all
  // later ones would come elsewhere than in an unbroken run, and so would what a roll-back goes to.
  if (!session_.stop_asked()) save_snapshot();
}

void ShardRun::close_epoch(bool whole) {
  report_drops("train", loader_->dropped());
  loader_.reset();
  if (whole) position_.samples_per_epoch = position_.loader.row;
}

void ShardRun::save_snapshot() {
  session_.progress().pause();
  log_info("ckpt", "Saving snapshot of epoch {}, sample {}", position_.epoch, position_.loader.row);
  checkpoints_.save(/*is_best=*/false);
  try {
    show_snapshot();
  } catch (const StoppedError&) {  // the loop stops: what is shown is for people to look at
  }
  since_step_.restart();
}

/// @throws StoppedError (a signal): what was saved then begins the validation again. After a kill the run
/// resumes from its last checkpoint: updates since then and the whole validation are done again
void ShardRun::validate_epoch() {
  session_.progress().pause();
  std::unique_ptr<ShardLoader> loader;
  session_.together(
      "opening the loader", [&] { open_loader(loader, "val", {}); }, {.from_outside = true});
  std::vector<LossSum> losses(static_cast<size_t>(any_trainer_->num_parts()));
  int64_t steps = 0, batches = 0;
  int64_t samples = 0;
  Timer timer;
  while (std::optional<Batch> batch = from_outside([&] { return next_batch(*loader); })) {
    loader->consumed(*batch);
    if (batch->size() > 0) {
      add_validation_losses(*batch, losses);
      ++batches;
    }
    samples += batch->samples_of_step;
    const double samples_per_second = static_cast<double>(samples) / timer.seconds();
    const std::string where = fmt::format("Epoch {}/{} Val Step {} - Sample {} - {} samples/sec",
                                          position_.epoch,
                                          epochs(),
                                          steps,
                                          samples,
                                          short_number(samples_per_second, /*digits=*/3));
    if (steps == 0) log_info("val", "{}", where);
    session_.progress().stage(where);
    ++steps;
    if (loop_.validation_samples && samples >= *loop_.validation_samples) break;
    session_.throw_if_stop_asked();
  }
  session_.throw_if_stop_asked();
  report_drops("val", loader->dropped());
  session_.progress().pause();
  log_info("val", "Rank 0 finished validation after {} steps", steps);
  std::vector<double> sums;
  for (const LossSum& loss : losses) sums.push_back(loss.value());
  sums.push_back(static_cast<double>(batches));
  sums = session_.group().sum(sums, "validation losses");
  batches = static_cast<int64_t>(sums.back());
  if (batches > 0) log_validation(sums, batches, samples);
  position_.next_task = "eval";
}

/// @param sums of the losses of each part over the batches
void ShardRun::log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples) {
  LogRecord record;
  ShownValue shown{.label = "validation loss"};
  double total = 0;
  const std::vector<int64_t> parts = any_trainer_->trained_parts();
  for (const int64_t part : parts) {
    const auto index = static_cast<size_t>(part - 1);
    const double loss = sums[index] / static_cast<double>(batches);
    total += loss;
    record.emplace_back(metrics_[index].of("validation loss"), loss);
    shown.values.emplace_back(loss);
  }
  const double mean = total / static_cast<double>(parts.size());
  if (std::isfinite(mean)) {
    position_.validation_loss = mean;
  } else {
    log_warning(
        "val", "the validation loss of epoch {} is not finite and does not count", position_.epoch);
  }
  const ShownValue of{.label = "of", .values = {samples}, .unit = "samples"};
  session_.tracker().log(record, any_trainer_->first_steps(), ShownRecord{shown, of});
}

/// A stop repeats the part that it cuts off.
void ShardRun::end_epoch() {
  if (position_.next_task == "val") validate_epoch();
  if (position_.next_task == "eval") evaluate_epoch();
  position_.next_task = "sample";
  sample_epoch();
}

/// Saves the state, as the best if its validation loss is.
void ShardRun::save_epoch() {
  // A stop while pictures are drawn repeats this save: the flag keeps what the loss of then said.
  position_.actions_due = position_.actions_due != 0 || position_.is_best() ? 1 : 0;
  if (position_.validation_loss) position_.validation_losses.push_back(*position_.validation_loss);
  position_.validation_loss.reset();
  checkpoints_.save(/*is_best=*/position_.actions_due != 0);
}

LogRecord ShardRun::step_values(double samples_per_second) {
  return {{"Epoch", position_.epoch},
          {"Sample", position_.loader.row},
          {"Step", position_.iteration},
          {"Samples per second", samples_per_second},
          {"Samples Seen", position_.samples_seen}};
}

int64_t ShardRun::samples_per_epoch() const {
  return position_.samples_per_epoch > 0 ? position_.samples_per_epoch
                                         : loop_.epoch_samples.value_or(0);
}

std::optional<int64_t> slices_of(const Cursor& checkpoint) {
  if (!checkpoint.value().is_dict()) return std::nullopt;
  ShardPosition saved;
  read_position(saved, checkpoint);
  const int64_t slices = saved.slices_of_run();
  return slices > 0 ? std::optional(slices) : std::nullopt;
}

}  // namespace dalle2
