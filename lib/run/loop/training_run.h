// SPDX-License-Identifier: MIT
// What the run of any kind is made of, and the loop of all kinds. A kind derives from it, and gives its
// batches, its losses and its pictures.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/timer.h"
#include "config/shared/train_options.h"
#include "data/loader/drop_log.h"
#include "dist/process_group.h"
#include "run/checkpoints/run_checkpoints.h"
#include "run/loop/run_position.h"
#include "run/loop/run_session.h"
#include "tracker/tracker.h"
#include "trainer/step_times.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// How the log writes the words "grad norm".
enum class NameStyle {
  kTitle,       ///< "Grad Norm"
  kUnderscore,  ///< "grad_norm"
  kHyphen,      ///< "grad-norm"
};

/// Names in the log for the values of a part of the model: a prefix, and words in a style.
struct PartMetricNames {
  std::string prefix = "";
  NameStyle style = NameStyle::kTitle;
  std::string loss = "training loss";  ///< the words of the loss

  std::string of(const std::string& words) const;
};

/// What there is to say of a trained part after an update.
struct PartValues {
  int64_t part = 1;
  LossAverage loss = {};
  std::optional<double> ema_decay = {};
  double learning_rate = 0;
  std::optional<double> grad_norm = {};
  int64_t skipped_updates = 0;
  std::optional<double> loss_scale = {};
};

/// For log.jsonl: the loss if there is a finite one, decay, rate, gradient norm, skipped updates if
/// there are any.
/// @param names one a part
void add_part_values(LogRecord& record,
                     const std::vector<PartValues>& parts,
                     const std::vector<PartMetricNames>& names);

/// For people: "loss 0.3065 0.4217  lr 1.98e-3  grad 0.42 0.51  108 samples/s  2 skipped", a value a
/// part; one rate where all have the same, skipped updates of all parts together.
ShownRecord shown_step(const std::vector<PartValues>& parts, double samples_per_second);

/// What a kind says about its run.
struct RunPlan {
  SessionOptions session;
  ConfigTexts texts;
  std::vector<PartMetricNames> metrics;  ///< one a part of the model
  std::string suspects;  ///< what to look for in the data when losses are not finite
};

/// What every kind's config says about its run, and what the kind adds. @param loaded has to outlive
/// the run
template <class Loaded>
RunPlan run_plan(const Loaded& loaded,
                 const RunProcess& process,
                 std::vector<PartMetricNames> metrics,
                 std::string suspects) {
  return {.session = {.tracker = loaded.config.tracker,
                      .train = loaded.config.train,
                      .seed = loaded.config.seed,
                      .process = process},
          .texts = config_texts(loaded),
          .metrics = std::move(metrics),
          .suspects = std::move(suspects)};
}

class TrainingRun {
 public:
  virtual ~TrainingRun() = default;

  /// Opens the data and says what is about to be trained, so that a fault in them leaves no files
  /// behind. All ranks call it before run(). @throws ConfigError, DataError, NetworkError;
  /// StoppedError at a stop signal
  virtual void open();
  /// Resumes from a checkpoint or starts from zero, and trains to the last epoch.
  /// @return kStopped if a signal asked for a stop; the state is saved then, as it is before an
  /// OutsideFault ends the run: what that holds is thrown
  /// @throws NonFiniteError when too many losses or gradients in a row are not finite; what
  /// RunCheckpoints::start() throws, StoppedError among it: then there is nothing to save
  ExitCode run();

 protected:
  using MakeTrainer = std::function<std::unique_ptr<Trainer>(const at::Device&)>;

  /// Builds model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  TrainingRun(RunPlan plan, std::unique_ptr<RunPosition> position, const MakeTrainer& make_trainer);

  /// What the loop needs besides the state, which stands by now; nothing is written yet. All ranks call
  /// it together. @throws ConfigError, DataError; StoppedError on all ranks
  virtual void prepare() {}

  // What a kind gives to the loop, in the order in which run_epochs() asks for it. Any of them may throw
  // a StoppedError: what was under way is done again by the start that resumes.
  /// What RunPosition::actions_due stands for.
  virtual void repeat_actions() {}
  /// Opens the data where the position stands in the epoch; the epoch starts over if they are others.
  virtual void open_epoch() = 0;
  /// Reads the batches of the next update: next_group(). @return false at the end of the epoch
  virtual bool read_group() = 0;
  /// Gradients of the group: pass_group(), or what a kind does in its place whose loss is not a mean
  /// over the samples, or whose step has several updates.
  /// @return samples of all ranks; none if a stop was asked for meanwhile
  virtual std::optional<int64_t> accumulate() = 0;
  /// Moves the position behind the group.
  virtual void advance() = 0;
  /// Updates each trained part. @param samples whose gradients there are
  /// @return whether a step was made
  virtual bool update_parts(int64_t samples);
  /// What follows a step: saves, validations and pictures that are due.
  virtual void after_step() {}
  /// The data of the epoch are through, if it is `whole`; else a stop or a fault ends them.
  virtual void close_epoch(bool /*whole*/) {}
  /// From position.next_task on, which is "val" after the last update.
  virtual void end_epoch() {}
  virtual void end_epochs() {}

  /// What the log says about a step besides what it says for every kind.
  virtual LogRecord step_values(double samples_per_second) = 0;
  virtual int64_t samples_per_epoch() const = 0;  ///< 0 while it is not known
  /// Of the run, for the time that is left.
  virtual int64_t epochs() const { return train_.epochs; }
  /// Whether the position is where the config lets the training end.
  virtual bool has_trained_all() const { return any_position_->epochs_trained() >= epochs(); }

  /// The batches of the next update: /train/grad_accum_every of them, fewer at the end of the
  /// epoch.
  /// @param next gives an optional batch, none at the end; its time counts as waiting for data
  template <class Next>
  auto next_group(Next&& next) {
    std::vector<typename decltype(next())::value_type> group;
    while (static_cast<int64_t>(group.size()) < train_.grad_accum_every) {
      auto batch = timed(&session_.times(), StepPhase::kData, [&] { return from_outside(next); });
      if (!batch) break;
      group.push_back(std::move(*batch));
    }
    return group;
  }

  /// Of all ranks in the batches of an update.
  template <class Batch>
  static int64_t samples_of(const std::vector<Batch>& group) {
    int64_t total = 0;
    for (const Batch& batch : group) total += batch.samples_of_step;
    return total;
  }

  /// What this rank's samples in one of the batches of an update weigh in it.
  template <class Batch>
  static BatchShare share_of(const Batch& batch, const std::vector<Batch>& group) {
    return {static_cast<double>(batch.size()) / static_cast<double>(samples_of(group)),
            &batch == &group.back()};
  }

  /// Gradients of the batches of an update, each weighted by its share of the samples of them all.
  /// @param parts that a pass goes through, in its order
  /// @param pass gives the gradients of one batch of this rank: (batch, share)
  /// @return samples of all ranks; none if a stop was asked for between two batches
  template <class Batch, class PassBatch>
  std::optional<int64_t> pass_group(const std::vector<Batch>& group,
                                    const std::vector<int64_t>& parts,
                                    PassBatch&& pass) {
    const int64_t total = samples_of(group);
    int64_t before = 0;
    for (const Batch& batch : group) {
      if (before > 0 && session_.stop_asked()) return std::nullopt;
      const BatchShare share = share_of(batch, group);
      if (batch.size() > 0) {
        pass(batch, share);
      } else if (total > 0 && share.is_last) {
        any_trainer_->finish_without_samples(parts);
      }
      before += batch.samples_of_step;
    }
    return total;
  }

  /// The loss of a part's update enters the means of the log.
  void note_loss(int64_t part) { losses_.push(part, any_trainer_->last_loss(part)); }
  /// Saves where the run stands.
  void save_latest();
  /// What follows a step, at least once: a resume from what is saved meanwhile, or after a stop in it,
  /// does it again.
  template <class Actions>
  void act(Actions&& actions) {
    any_position_->actions_due = 1;
    actions();
    any_position_->actions_due = 0;
  }
  /// Saves the state as the best if the loss of a validation is lower than `best`, which the caller
  /// changes after the save: within act() only. @return whether it is
  bool save_if_best(double loss, double best);
  /// What an epoch of a split left out: a warning, and a record of counts by reason; nothing if nothing was.
  void report_drops(const std::string& split, const DropCounts& dropped);

  /// The position and the trainer, as the kind's own types.
  template <class Position>
  Position& position_as() {
    return static_cast<Position&>(*any_position_);
  }
  template <class KindTrainer>
  KindTrainer& trainer_as() {
    return static_cast<KindTrainer&>(*any_trainer_);
  }

 private:
  struct TooManySkips {
    int64_t part, in_a_row;
  };

  ExitCode run_epochs();
  void end(ExitCode code, const std::exception_ptr& fault);
  void tell_end(RunEnd::Outcome outcome, ExitCode code);
  void train_epoch();
  bool train_groups();
  void after_update(int64_t samples);
  void look_for_skips(bool settled);
  int64_t skipped_updates() const;
  void remember_skips();
  void roll_back(const TooManySkips& skips);
  [[noreturn]] void give_up(int64_t part, int64_t in_a_row, const std::string& why);
  std::string part_prefix(int64_t part) const;
  std::string finish_mark() const;
  bool was_finished();
  void save_before_the_end(bool fault_follows);
  std::optional<Error> fault_of_ranks(const std::exception_ptr& own);
  void log_step(double samples_per_second);
  void show_progress();

 protected:
  const SharedTrainConfig& train_;
  std::unique_ptr<RunPosition> any_position_;
  std::vector<PartMetricNames> metrics_;  // one a part: what the log calls its numbers
  const std::string config_sha256_, suspects_;
  ProgressState progress_;  // losses and skipped updates are those of the last record
  Timer since_step_;        // for samples per second: restarted after what is no training
  double latest_at_ = 0;    // save_latest(), or the beginning, by ProcessGroup::heard_seconds()
  int64_t began_with_seen_ = 0;      // samples that the run had seen when this start began
  std::vector<int64_t> told_skips_;  // of each part: skipped updates that were reported
  RunSession session_;
  std::unique_ptr<Trainer> any_trainer_;
  LossWindow losses_;
  RunCheckpoints checkpoints_;
};

}  // namespace dalle2
