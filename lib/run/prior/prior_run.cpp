// SPDX-License-Identifier: MIT
#include "run/prior/prior_run.h"

#include <torch/types.h>

#include <cmath>

#include "base/log.h"
#include "base/text.h"
#include "base/timer.h"
#include "metrics/embedding_similarities.h"

namespace dalle2 {
namespace {

/// What the console calls a similarity; null: it is for log.jsonl alone.
const char* label_of(const std::string& similarity) {
  if (similarity == "similarity with original image") return "image";
  if (similarity == "similarity with text") return "text";
  if (similarity == "similarity with unrelated caption") return "other text";
  return nullptr;
}

}  // namespace

PriorInputs PriorRun::inputs_of(const PriorBatch& batch) {
  return to_inputs(batch, session_.device(), clip_.get(), config_.prior);
}

ExitCode PriorRun::run_epochs() {
  validated_at_ = session_.group().heard_seconds();
  take_order();
  while (position_.epoch < config_.train.epochs) {
    if (position_.actions_due != 0) validate();  // a stop cut it off
    if (!train_epoch()) continue;                // it went back
    if (session_.stop_asked()) return ExitCode::kStopped;
    ++position_.epoch;
    position_.restart_epoch();
    dropped_in_epoch_.clear();
  }
  finish();
  return ExitCode::kDone;
}

/// A place in the epoch's order counts only in that order: rows that have moved to a server, or from
/// one, come in another.
void PriorRun::take_order() {
  if (position_.row > 0 && position_.block_rows != data_.block_rows()) {
    log_warning("data",
                "the order of the rows has changed, as the embeddings lie elsewhere than when the "
                "checkpoint was made: epoch {} starts over",
                position_.epoch);
    position_.restart_epoch();
  }
  position_.block_rows = data_.block_rows();
}

/// As in the reference, after the last epoch; but here a good loss of the test rows makes no best
/// checkpoint.
void PriorRun::finish() {
  validate();
  save_latest();
  const HeldAverages averages = trainer_.hold_averages();
  DropCounts dropped;
  const auto loss = mean_loss("test", trainer_.uses_ema(), dropped);
  session_.progress().pause();
  report_drops(session_.tracker(), trainer_.steps(), "test", dropped);
  if (!loss) return;
  log({loss_record(trainer_.uses_ema() ? "ema-test" : "online-test", "test loss", *loss)});
}

/// @return false if the run went back to a checkpoint
bool PriorRun::train_epoch() {
  log_info("train", "Starting epoch {}", position_.epoch);
  restart_step_clock();
  const bool from_begin = position_.row == 0;
  if (from_begin) {
    session_.tracker().log({{"tracking/epoch", position_.epoch}}, trainer_.steps(), ShownRecord{});
  }
  const int64_t seen_before = position_.samples_seen;
  auto next = steps_from(
      position_.row, [this](int64_t row) { return next_batch("train", row, dropped_in_epoch_); });
  for (auto group = next_group(next); !group.empty(); group = next_group(next)) {
    checkpoints_.check();
    const auto samples = train_group(group);
    if (!samples) return true;
    if (!after_update(*samples)) return false;
    if (session_.stop_asked()) return true;
    if (session_.is_due(validated_at_, config_.data.eval_every_seconds)) validate();
    save_latest_if_due(config_.train.save_every_seconds);
  }
  session_.progress().finish();
  report_drops(session_.tracker(), trainer_.steps(), "train", dropped_in_epoch_);
  if (from_begin && position_.samples_seen == seen_before)
    from_outside([this] { throw_nothing_usable(data_, clip_ != nullptr); });
  return guard_.look(/*settled=*/true);
}

/// @param row of the split, the first of the step. @return none past its end, on all ranks
std::optional<PriorRankBatch> PriorRun::next_batch(const std::string& split,
                                                   int64_t row,
                                                   DropCounts& dropped) {
  auto next = rank_batch<PriorBatch>(session_.group(),
                                     data_.rows(split),
                                     row,
                                     config_.data.batch_size,
                                     [&](int64_t first, int64_t count) {
                                       return data_.batch(split, position_.epoch, first, count);
                                     });
  if (next) next->batch.drops.report(split, dropped_[split], dropped);
  return next;
}

/// One update, from the mean over the samples of all batches.
/// @return these samples; none if a stop was asked for before the update
std::optional<int64_t> PriorRun::train_group(const std::vector<PriorRankBatch>& group) {
  const auto samples =
      pass_group(group, {1}, [&](const PriorRankBatch& each, int64_t, double share) {
        // Addressed by the rows of the epoch so far, so that a resumed epoch, or one of another number
        // of ranks, draws the same.
        const at::Generator random = session_.generator("train", position_.epoch, each.row);
        trainer_.step(inputs_of(each.batch), random, std::nullopt, share);
      });
  if (!samples) return std::nullopt;
  for (const PriorRankBatch& each : group) position_.row += each.rows_of_step;
  position_.samples_seen += *samples;
  if (*samples > 0) update(1);
  return samples;
}

std::optional<double> PriorRun::mean_loss(const std::string& split,
                                          bool averaged,
                                          DropCounts& dropped) {
  return mean_loss_of_split(
      split,
      data_.rows(split),
      [&](int64_t row) { return next_batch(split, row, dropped); },
      [&](const PriorRankBatch& step) {
        // The same draws every time: two validations then differ by the weights alone.
        const at::Generator random = session_.generator("validate " + split, /*epoch=*/0, step.row);
        return trainer_.evaluate(inputs_of(step.batch), random, averaged);
      });
}

/// A stop cuts it off before anything is logged: the resumed run makes it again.
void PriorRun::validate() {
  act([this] { save_if_best(validation_loss(), position_.best_validation_loss); });
  validated_at_ = session_.group().heard_seconds();
  restart_step_clock();
}

/// Logs what a validation finds. @return the loss, of the averages if there are any; NaN without rows
double PriorRun::validation_loss() {
  session_.progress().pause();
  const HeldAverages averages = trainer_.hold_averages();
  Timer timer;
  const bool has_average = trainer_.uses_ema();
  const char* folder = has_average ? "ema-validation" : "online-validation";
  DropCounts dropped, dropped_again;
  const auto online = mean_loss("val", /*averaged=*/false, dropped);
  std::vector<PriorRecord> records;
  double loss = NAN;
  if (online) {
    const char* label = has_average ? "validation loss without averaging" : "validation loss";
    records.push_back(loss_record("online-validation", label, *online));
    add_similarities(folder, records);
    loss = has_average ? mean_loss("val", /*averaged=*/true, dropped_again).value() : *online;
    if (has_average) records.push_back(loss_record(folder, "validation loss", loss));
    records.push_back({{{"tracking/validation length (minutes)", timer.seconds() / 60}}, {}});
  }
  session_.throw_if_stop_asked();
  report_drops(session_.tracker(), trainer_.steps(), "val", dropped);
  log(records);
  return loss;
}

void PriorRun::log(const std::vector<PriorRecord>& records) {
  for (const PriorRecord& each : records) {
    session_.tracker().log(each.values, trainer_.steps(), each.shown);
  }
}

PriorRecord PriorRun::loss_record(const std::string& folder, const char* label, double loss) const {
  const char* loss_type = enum_names<LossType>[static_cast<size_t>(config_.prior.loss_type)];
  return {{{fmt::format("metrics/{}/{}-loss", folder, loss_type), loss}},
          {{.label = label, .values = {loss}}}};
}

/// One batch: rank 0 draws, and the others wait for it.
void PriorRun::add_similarities(const std::string& folder, std::vector<PriorRecord>& records) {
  session_.together("similarities of the validation rows", [&] {
    if (session_.group().is_main()) draw_similarities(folder, records);
  });
}

void PriorRun::draw_similarities(const std::string& folder, std::vector<PriorRecord>& records) {
  const auto batch =
      from_outside([&] { return data_.batch("val", 0, 0, config_.data.batch_size); });
  if (!batch || batch->size() == 0) return;
  PriorSampleOptions options;
  const PriorInputs inputs = inputs_of(*batch);
  options.text = inputs.text;
  options.on_step = [&](size_t step, size_t steps) {
    session_.throw_if_signalled();
    session_.progress().stage(fmt::format("drawing embeddings: step {}/{}", step + 1, steps));
  };
  for (const int64_t steps : config_.train.eval_timesteps) {
    options.timesteps = steps;
    options.generator = session_.generator("similarities", /*epoch=*/0, steps);
    const auto similarities =
        embedding_similarities(inputs.text.embeds,
                               inputs.image_embeds,
                               trainer_.p_sample_loop(options,
                                                      /*use_non_ema=*/false,
                                                      config_.train.max_batch_size));
    LogRecord record;
    ShownRecord shown;
    for (const auto& [name, value] : similarities) {
      record.emplace_back(fmt::format("metrics/{}/{} [steps={}]", folder, name, steps), value);
      if (const char* label = label_of(name)) shown.push_back({.label = label, .values = {value}});
    }
    shown.insert(shown.begin(), {.label = "cosines in", .values = {steps}, .unit = "steps:"});
    records.push_back({std::move(record), std::move(shown)});
  }
}

LogRecord PriorRun::step_values(double samples_per_second) {
  return {{"tracking/samples-sec", samples_per_second},
          {"tracking/samples-seen", position_.samples_seen}};
}

void PriorPosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("samples_seen", samples_seen);
  visitor.field("best_validation_loss", best_validation_loss);
  visitor.own("row", row);
  visitor.own("block_rows", block_rows);
  visitor.own("iteration", iteration);
}

void PriorPosition::reset() {
  epoch = config_->current_epoch;
  samples_seen = config_->num_samples_seen;
  best_validation_loss = config_->best_validation_loss;
  row = block_rows = iteration = actions_due = 0;
}

void PriorPosition::restart_with_other_data() {
  restart_epoch();
  best_validation_loss = config_->best_validation_loss;  // that was of other rows
  actions_due = 0;
}

std::string PriorPosition::description() const {
  const bool none_yet = best_validation_loss == config_->best_validation_loss;
  return fmt::format("epoch {} having seen {} samples with best validation loss {}",
                     epoch,
                     samples_seen,
                     none_yet ? "N/A" : short_number(best_validation_loss));
}

std::string PriorPosition::resumes_with() const {
  return fmt::format("epoch {} at sample {}", epoch, row);
}

}  // namespace dalle2
