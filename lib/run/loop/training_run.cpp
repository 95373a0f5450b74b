// SPDX-License-Identifier: MIT
#include "run/loop/training_run.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>

#include "base/log.h"
#include "base/this_process.h"
#include "net/digest.h"

namespace dalle2 {
namespace {

double mebibytes(double bytes) {
  return bytes / (1024.0 * 1024.0);
}

/// Of each trained part. Waits for the device. @param losses one a trained part
std::vector<PartValues> part_values(const Trainer& trainer,
                                    const std::vector<LossAverage>& losses) {
  const std::vector<int64_t> parts = trainer.trained_parts();
  std::vector<PartValues> values;
  for (size_t i = 0; i < parts.size(); ++i) {
    PartValues& of_part = values.emplace_back();
    of_part.part = parts[i];
    of_part.loss = losses[i];
    of_part.ema_decay = trainer.ema_decay(parts[i]);
    of_part.learning_rate = trainer.learning_rate(parts[i]);
    if (const at::Tensor norm = trainer.last_grad_norm(parts[i]); norm.defined())
      of_part.grad_norm = norm.item<double>();
    of_part.skipped_updates = trainer.skipped_updates(parts[i]).total;
    of_part.loss_scale = trainer.loss_scale(parts[i]);
  }
  return values;
}

/// "Seconds data" ... "Seconds save": a step's average since the last call; "Memory peak MiB": the
/// process's; "CUDA memory peak MiB" on a GPU. Waits for nothing.
void add_process_values(LogRecord& record, StepTimes& times, const c10::Device& device) {
  for (const auto& [phase, seconds] : times.take())
    record.emplace_back("Seconds " + phase, seconds);
  record.emplace_back("Memory peak MiB", mebibytes(static_cast<double>(process_memory("VmHWM"))));
  if (!device.is_cpu()) {
    const c10::Device one =
        device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
    const auto stats = c10::getDeviceAllocator(one.type())->getDeviceStats(one.index());
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    record.emplace_back("CUDA memory peak MiB",
                        mebibytes(static_cast<double>(stats.allocated_bytes[all].peak)));
  }
}

}  // namespace

TrainingRun::TrainingRun(RunPlan plan,
                         std::unique_ptr<RunPosition> position,
                         const MakeTrainer& make_trainer)
    : train_(plan.session.train),
      any_position_(std::move(position)),
      metrics_(std::move(plan.metrics)),
      config_sha256_(to_hex(sha256(plan.texts.full_json))),
      suspects_(std::move(plan.suspects)),
      session_(plan.session, *any_position_),
      any_trainer_(make_trainer(session_.device())),
      losses_(any_trainer_->num_parts(), train_.log_every_n_updates, session_.device()),
      checkpoints_(
          session_, *any_trainer_, *any_position_, losses_, train_, std::move(plan.texts)) {
  told_skips_.resize(static_cast<size_t>(any_trainer_->num_parts()));
  any_trainer_->set_step_times(&session_.times());
  any_trainer_->connect(session_.group(),
                        {.bucket_bytes = train_.bucket_mebibytes << 20,
                         .in_bfloat16 = train_.reduce_dtype == ReduceDtype::bf16,
                         .static_graph = train_.static_graph,
                         .unused_is_error = !train_.find_unused_parameters},
                        {.shard_optimizer = train_.shard_optimizer,
                         .scratch_path = session_.tracker().in_data_path(kGatheredFile)});
}

void TrainingRun::open() {
  const PrecisionChoice& chosen = any_trainer_->precision();
  if (chosen.reason.empty()) return;  // it was neither chosen nor asked for
  const auto name = enum_names<MixedPrecision>[static_cast<size_t>(chosen.precision)];
  log_info("train", "mixed precision: {} ({})", name, chosen.reason);
}

ExitCode TrainingRun::run() {
  using Outcome = RunEnd::Outcome;
  try {
    bool is_finished = false;
    {
      const ProcessGroup::BusyScope busy(session_.group(), "resuming what an earlier run left");
      checkpoints_.start();
      prepare();
      if (checkpoints_.begin()) {
        remember_skips();
        is_finished = was_finished();
        if (!is_finished) checkpoints_.tell_resuming();
      }
    }
    ExitCode code = is_finished ? ExitCode::kDone : ExitCode::kStopped;
    latest_at_ = session_.group().heard_seconds();
    began_with_seen_ = any_position_->samples_seen;
    std::exception_ptr fault;
    try {
      if (!is_finished) code = run_epochs();
    } catch (const StoppedError&) {  // the same command does what was under way again
    } catch (const OutsideFault& outside) {
      fault = outside.fault;
    }
    if (is_finished) {
      checkpoints_.finish(code);
    } else {
      end(code, fault);
    }
    tell_end(code == ExitCode::kDone ? Outcome::kDone : Outcome::kStopped, code);
    return code;
  } catch (const Error& error) {
    tell_end(error.code() == ExitCode::kStopped ? Outcome::kStopped : Outcome::kFailed,
             error.code());
    throw;
  } catch (...) {
    tell_end(Outcome::kFailed, ExitCode::kFailed);
    throw;
  }
}

/// The loggers hear how it ended.
void TrainingRun::tell_end(RunEnd::Outcome outcome, ExitCode code) {
  try {
    checkpoints_.wait();  // a save in the background uses the tracker
  } catch (const std::exception& error) {
    log_error("ckpt", "{}", error.what());
  }
  session_.tracker().finish({.outcome = outcome, .exit_code = static_cast<int>(code)});
}

/// The same for every start of one command that has nothing left to do.
std::string TrainingRun::finish_mark() const {
  return fmt::format("{} samples, config {}", any_position_->samples_seen, config_sha256_);
}

/// Whether an earlier start of the same command did all of it, pictures and figures too: then it says so.
bool TrainingRun::was_finished() {
  if (!has_trained_all()) return false;
  ProcessGroup& group = session_.group();
  const bool same = group.is_main() && session_.tracker().finished_as() == finish_mark();
  if (group.text_of_main(same ? "finished" : "", "whether the run has finished").empty())
    return false;
  session_.end_quiet();
  log_info("train",
           "nothing left to do: the run has finished; to train further, raise epochs (for a VAE "
           "num_train_steps) in /train");
  return true;
}

/// Saves the state, and notes that the run has finished. @throws the fault of a rank
void TrainingRun::end(ExitCode code, const std::exception_ptr& fault) {
  if (code == ExitCode::kStopped) {
    session_
        .stop_asked();  // whatever heard of the signal first: it is reported, and nothing copied
    const std::optional<Error> of_any_rank = fault_of_ranks(fault);
    save_before_the_end(/*fault_follows=*/of_any_rank.has_value());
    if (fault) std::rethrow_exception(fault);
    if (of_any_rank) throw *of_any_rank;
  } else {
    checkpoints_.save_averages();
  }
  checkpoints_.finish(code);
  if (code != ExitCode::kDone) return;
  try {
    session_.tracker().finish_as(finish_mark());
  } catch (const Error& error) {  // costs the next start its last epoch's pictures, no more
    log_warning("track", "the end of the run could not be noted: {}", error.what());
  }
}

/// The fault counts, whatever becomes of the save.
void TrainingRun::save_before_the_end(bool fault_follows) {
  // A start that has trained nothing has nothing to save.
  if (!session_.stopped() && any_position_->samples_seen == began_with_seen_) return;
  try {
    checkpoints_.save(/*is_best=*/false);
    checkpoints_.wait();
  } catch (const std::exception& error) {
    if (!fault_follows) throw;
    log_error("ckpt", "the state could not be saved: {}", error.what());
  }
}

/// What ends one rank ends all. @param own of this rank, or null @return the text and exit code of
/// the first rank that has a fault; none if none has
std::optional<Error> TrainingRun::fault_of_ranks(const std::exception_ptr& own) {
  ProcessGroup& group = session_.group();
  int64_t own_code = 0;
  std::string own_text;
  try {
    if (own) std::rethrow_exception(own);
  } catch (const Error& error) {
    own_code = static_cast<int64_t>(error.code());
    own_text = error.what();
  }
  const auto codes = group.exchange({own_code}, "faults");
  const std::vector<std::string> texts = group.gather_texts(own_text, "faults");
  for (size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank][0] == 0) continue;
    return Error(static_cast<ExitCode>(codes[rank][0]),
                 fmt::format("rank {} ended the run: {}", rank, texts[rank]));
  }
  return std::nullopt;
}

/// The loop of every kind. @throws StoppedError instead of kStopped, from anywhere
ExitCode TrainingRun::run_epochs() {
  RunPosition& position = *any_position_;
  // A run over shards that had trained its last epoch samples and saves again, as the reference does.
  while (position.next_task != kTrainTask || !has_trained_all()) {
    if (position.next_task == kTrainTask) {
      if (position.actions_due != 0) repeat_actions();  // a stop cut them off
      const int64_t epoch = position.epoch;
      try {
        open_epoch();
        train_epoch();
      } catch (const TooManySkips& skips) {
        roll_back(skips);
        continue;
      }
      if (session_.stopped()) return ExitCode::kStopped;
      if (has_trained_all()) break;           // amid an epoch
      if (position.epoch != epoch) continue;  // a step has reached into the next one
      position.restart_epoch();
      position.next_task = "val";
    }
    end_epoch();
    position.next_task = kTrainTask;
    position.actions_due = 0;
    ++position.epoch;
    if (!has_trained_all() && session_.stop_asked()) return ExitCode::kStopped;
  }
  end_epochs();
  return ExitCode::kDone;
}

/// The updates of an epoch, to its end or to a stop. @throws TooManySkips
void TrainingRun::train_epoch() {
  since_step_.restart();
  bool whole = false;
  try {
    whole = train_groups();
  } catch (...) {
    close_epoch(/*whole=*/false);
    throw;
  }
  session_.progress().finish();
  close_epoch(whole);
  if (!session_.stop_asked()) look_for_skips(/*settled=*/true);
}

/// @return whether the data of the epoch are through
bool TrainingRun::train_groups() {
  while (read_group()) {
    checkpoints_.check();
    const std::optional<int64_t> samples = accumulate();
    if (!samples) return false;
    advance();
    any_position_->samples_seen += *samples;
    if (update_parts(*samples)) {
      after_update(*samples);
      after_step();
    }
    if (session_.stop_asked()) return false;
  }
  return true;
}

bool TrainingRun::update_parts(int64_t samples) {
  if (samples == 0) return true;  // none of them could be read
  for (const int64_t part : any_trainer_->trained_parts()) {
    any_trainer_->update(part);
    note_loss(part);
  }
  return true;
}

/// Looks for skipped updates, saves averages that are due, logs every /train/log_every_n_updates, counts
/// the iteration. @throws TooManySkips
void TrainingRun::after_update(int64_t samples) {
  session_.times().count_step();
  session_.group().set_step(any_trainer_->first_steps(/*settled=*/false));
  look_for_skips(/*settled=*/false);
  const double samples_per_second = static_cast<double>(samples) / since_step_.seconds();
  checkpoints_.save_averages_if_due();
  since_step_.restart();
  if (any_position_->iteration % train_.log_every_n_updates == 0) log_step(samples_per_second);
  show_progress();
  ++any_position_->iteration;
}

void TrainingRun::save_latest() {
  log_info("ckpt",
           "Saving the latest: epoch {}, sample {}",
           any_position_->epoch,
           any_position_->loader.row);
  checkpoints_.save(/*is_best=*/false);
  latest_at_ = session_.group().heard_seconds();
  since_step_.restart();
}

bool TrainingRun::save_if_best(double loss, double best) {
  if (!std::isfinite(loss) || !(loss < best) || checkpoints_.is_amid_skips()) return false;
  log_info("ckpt", "Saving the best so far");
  checkpoints_.save(/*is_best=*/true, /*is_latest=*/false);
  return true;
}

void TrainingRun::log_step(double samples_per_second) {
  std::vector<LossAverage> losses;
  for (const int64_t part : any_trainer_->trained_parts()) losses.push_back(losses_.average(part));
  const std::vector<PartValues> parts = part_values(*any_trainer_, losses);
  LogRecord record = step_values(samples_per_second);
  add_part_values(record, parts, metrics_);
  add_process_values(record, session_.times(), session_.device());
  const ShownRecord shown =
      session_.quiet() ? ShownRecord{} : shown_step(parts, samples_per_second);
  session_.tracker().log(record, any_trainer_->first_steps(), shown);
  progress_.losses.clear();
  for (const LossAverage& loss : losses) progress_.losses.push_back(loss.mean);
  progress_.skipped = skipped_updates();
}

void TrainingRun::show_progress() {
  progress_.epoch = any_position_->epoch;
  progress_.epochs = epochs();
  progress_.sample = any_position_->loader.row;
  progress_.samples_per_epoch = samples_per_epoch();
  session_.progress().update(progress_);
}

std::string PartMetricNames::of(const std::string& words) const {
  std::string name = prefix;
  bool begins_word = true;
  for (const char c : words) {
    const auto letter = static_cast<unsigned char>(c);
    if (style == NameStyle::kTitle) {
      name += begins_word ? static_cast<char>(std::toupper(letter)) : c;
    } else {
      const char joint = style == NameStyle::kHyphen ? '-' : '_';
      name += c == ' ' ? joint : static_cast<char>(std::tolower(letter));
    }
    begins_word = c == ' ';
  }
  return name;
}

void add_part_values(LogRecord& record,
                     const std::vector<PartValues>& parts,
                     const std::vector<PartMetricNames>& names) {
  for (const PartValues& part : parts) {
    const PartMetricNames& name = names.at(static_cast<size_t>(part.part - 1));
    if (std::isfinite(part.loss.mean)) record.emplace_back(name.of(name.loss), part.loss.mean);
    if (part.loss.left_out > 0)
      record.emplace_back(name.of("losses not finite"), part.loss.left_out);
    if (part.ema_decay) record.emplace_back(name.of("EMA decay"), *part.ema_decay);
    record.emplace_back(name.of("learning rate"), part.learning_rate);
    if (part.grad_norm) record.emplace_back(name.of("grad norm"), *part.grad_norm);
    if (part.skipped_updates > 0 || part.loss_scale)
      record.emplace_back(name.of("skipped updates"), part.skipped_updates);
    if (part.loss_scale) record.emplace_back(name.of("loss scale"), *part.loss_scale);
  }
}

ShownRecord shown_step(const std::vector<PartValues>& parts, double samples_per_second) {
  constexpr int kRateDigits = 3;
  ShownValue loss{.label = "loss"}, rate{.label = "lr"}, grad{.label = "grad"};
  int64_t skipped = 0;
  for (const PartValues& part : parts) {
    const bool had_no_step = std::isnan(part.loss.mean) && part.loss.left_out == 0 &&
                             part.skipped_updates == 0;  // a discriminator that begins later
    if (!had_no_step || parts.size() == 1) loss.values.emplace_back(part.loss.mean);
    rate.values.emplace_back(part.learning_rate);
    if (part.grad_norm) grad.values.emplace_back(*part.grad_norm);
    skipped += part.skipped_updates;
  }
  const bool one_rate = std::ranges::all_of(
      rate.values, [&](const auto& value) { return value == rate.values.front(); });
  if (one_rate && !rate.values.empty()) rate.values.resize(1);
  ShownRecord shown = {loss, rate};
  if (!grad.values.empty()) shown.push_back(grad);
  shown.push_back({.values = {samples_per_second}, .unit = "samples/s", .digits = kRateDigits});
  if (skipped > 0) shown.push_back({.values = {skipped}, .unit = "skipped"});
  return shown;
}

void TrainingRun::report_drops(const std::string& split, const DropCounts& dropped) {
  if (dropped.empty()) return;
  log_warning("data", "{} in this epoch: {}", split, describe_drops(dropped));
  LogRecord record;
  for (const auto& [reason, count] : dropped)
    record.emplace_back(fmt::format("Dropped {}: {}", split, reason), count);
  session_.tracker().log(record, any_trainer_->first_steps(), ShownRecord{});
}

/// "unet 1: ", or nothing where the kind has one part.
std::string TrainingRun::part_prefix(int64_t part) const {
  const std::string& name = any_trainer_->part_name(part);
  return name.empty() ? "" : name + ": ";
}

/// Reports skipped updates. @param settled false: as far as is known without waiting for the device
/// @throws TooManySkips
void TrainingRun::look_for_skips(bool settled) {
  for (const int64_t part : any_trainer_->trained_parts()) {
    const SkippedUpdates skipped = any_trainer_->skipped_updates(part, settled);
    int64_t& told = told_skips_[static_cast<size_t>(part - 1)];
    if (skipped.total == told) continue;
    told = skipped.total;
    // Each time their number has doubled. All ranks know it, and one of them says so.
    if (std::has_single_bit(static_cast<uint64_t>(told)) && session_.group().is_main()) {
      const bool scales = any_trainer_->precision().precision == MixedPrecision::fp16;
      log_warning(
          "train",
          "{}an update was skipped, because its loss or gradient is not finite{}; {} skipped so far "
          "(step {}, epoch {}, sample {})",
          part_prefix(part),
          scales ? " (this is how fp16 finds its loss scale)" : "",
          told,
          any_trainer_->steps(part),
          any_position_->epoch,
          any_position_->loader.row);
    }
    if (skipped.in_a_row >= train_.non_finite.after) throw TooManySkips{part, skipped.in_a_row};
  }
}

/// Of all parts, of the whole run.
int64_t TrainingRun::skipped_updates() const {
  int64_t total = 0;
  for (const int64_t part : any_trainer_->trained_parts())
    total += any_trainer_->skipped_updates(part).total;
  return total;
}

void TrainingRun::give_up(int64_t part, int64_t in_a_row, const std::string& why) {
  const bool fp16 = any_trainer_->precision().precision == MixedPrecision::fp16;
  const std::string& name = any_trainer_->part_name(part);
  const std::string good = checkpoints_.newest_good();
  const std::string kept =
      !good.empty()
          ? fmt::format(
                "The checkpoints hold finite weights: run the command again with --back-to "
                "{} (or another of the snapshots) to resume from it.",
                good)
          : "Nothing was saved.";
  throw NonFiniteError(
      "the last {} updates{} were skipped, because their losses or gradients are not finite (step "
      "{}, epoch {}, sample {}){}\n  {} Lower /train/lr, set or lower /train/max_grad_norm, look "
      "for {}{}. /train/non_finite says when a run gives up.",
      in_a_row,
      name.empty() ? "" : " of " + name,
      any_trainer_->steps(part),
      any_position_->epoch,
      any_position_->loader.row,
      why,
      kept,
      suspects_,
      fp16 ? ", or train with /train/mixed_precision \"bf16\"" : "");
}

/// Goes back to the last checkpoint: the position is another one. @throws NonFiniteError if the run has
/// to stop
void TrainingRun::roll_back(const TooManySkips& skips) {
  const auto& [part, in_a_row] = skips;
  if (train_.non_finite.action == NonFiniteAction::stop) give_up(part, in_a_row, "");
  if (checkpoints_.newest_good().empty())
    give_up(part, in_a_row, "; there is no checkpoint of this run to go back to");
  if (checkpoints_.roll_backs() >= train_.non_finite.max_roll_backs) {
    give_up(
        part,
        in_a_row,
        fmt::format("; the run went back {} before", counted(checkpoints_.roll_backs(), "time")));
  }
  session_.progress().finish();
  const double factor = any_trainer_->learning_rate_factor() * train_.non_finite.lr_factor;
  std::vector<SkippedUpdates> skipped;
  for (const int64_t each : any_trainer_->trained_parts())
    skipped.push_back(any_trainer_->skipped_updates(each));
  if (session_.group().is_main()) {
    log_warning("train",
                "{}{} updates in a row were skipped (epoch {}, sample {}): going back to the last "
                "checkpoint, {} of {} times, with the learning rates multiplied by {}",
                part_prefix(part),
                in_a_row,
                any_position_->epoch,
                any_position_->loader.row,
                checkpoints_.roll_backs() + 1,
                train_.non_finite.max_roll_backs,
                factor);
  }
  checkpoints_.go_back();
  any_trainer_->set_learning_rate_factor(factor);
  size_t i = 0;
  for (const int64_t each : any_trainer_->trained_parts())
    any_trainer_->set_skipped_updates(each, {.total = skipped[i++].total, .in_a_row = 0});
  remember_skips();
  session_.tracker().log(
      {{"Roll Backs", checkpoints_.roll_backs()}, {"Learning Rate Factor", factor}},
      any_trainer_->first_steps(),
      ShownRecord{});                    // the warning above said so
  checkpoints_.save(/*is_best=*/false);  // so that a resumed run knows of it
}

/// Counts what was skipped so far as reported: after a checkpoint was loaded.
void TrainingRun::remember_skips() {
  for (const int64_t part : any_trainer_->trained_parts())
    told_skips_[static_cast<size_t>(part - 1)] = any_trainer_->skipped_updates(part).total;
}

}  // namespace dalle2
