// SPDX-License-Identifier: MIT
// What runs over rows have in common, those of embeddings and the pictures of a folder: any row can be
// read at any time, so a place in the order says all.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "run/loop/training_run.h"

namespace dalle2 {

/// This rank's share of a step. @tparam Batch has `rows`, those taken, and size(), those that are
/// used
template <class Batch>
struct RankBatch {
  Batch batch;               ///< without rows where the rows ran out on ranks before this one
  int64_t row = 0;           ///< its first, of the split or epoch
  int64_t rows_of_step = 0;  ///< of all ranks
  int64_t samples_of_step = 0;

  int64_t size() const { return batch.size(); }
};

/// The step that begins at `row`; all ranks have to call it.
/// @param rows of the split or epoch @param read gives an optional batch of (first row, rows), none
/// after the end @return none after the end, on all ranks
/// @throws what read() throws, an Error, on this rank; StoppedError on the others
template <class Batch, class Read>
std::optional<RankBatch<Batch>> rank_batch(
    ProcessGroup& group, int64_t rows, int64_t row, int64_t batch_size, const Read& read) {
  if (row >= rows) return std::nullopt;
  RankBatch<Batch> next{.batch = {}, .row = row + group.rank() * batch_size};
  const ProcessGroup::BusyScope busy(group, "waiting for data");
  std::exception_ptr fault;
  try {
    if (std::optional<Batch> batch = read(next.row, batch_size)) next.batch = *std::move(batch);
  } catch (const Error&) {  // the others would wait for this rank
    fault = std::current_exception();
  }
  bool is_faulty = false;
  for (const auto& each :
       group.exchange({next.batch.rows, next.batch.size(), fault ? 1 : 0}, "rows of the step")) {
    next.rows_of_step += each[0];
    next.samples_of_step += each[1];
    is_faulty = is_faulty || each[2] != 0;
  }
  if (fault) std::rethrow_exception(fault);
  if (is_faulty) throw StoppedError("another rank cannot read its batch");
  return next;
}

/// @tparam Data rows(split) and batch(split, epoch, first row, rows): a batch has `rows`, those taken,
/// size(), those that are used, and `drops`; none past the end
template <class Data>
class RowRun : public TrainingRun {
 protected:
  using Step = RankBatch<typename decltype(std::declval<Data&>().batch(
      "", int64_t{}, int64_t{}, int64_t{}))::value_type>;

  RowRun(RunPlan plan,
         std::unique_ptr<RunPosition> position,
         const MakeTrainer& make_trainer,
         int64_t batch_size,
         const std::function<Data(const at::Device&)>& open_data)
      : TrainingRun(std::move(plan), std::move(position), make_trainer),
        data_(open_data(session_.device())),
        batch_size_(batch_size) {}

  /// Says and throws that no row of the epoch can be used.
  [[noreturn]] virtual void throw_nothing_usable() const = 0;

  /// A place in the data.
  struct Place {
    int64_t epoch = 0, row = 0;
  };

  void open_epoch() override {
    epoch_ = any_position_->epoch;
    began_whole_ = any_position_->loader.row == 0;
    seen_before_ = any_position_->samples_seen;
    dropped_in_epoch_.clear();
  }
  bool read_group() override {
    after_ = {any_position_->epoch, any_position_->loader.row};
    if (after_.epoch != epoch_) return false;  // the last step has begun the next one
    group_ = next_group_from(after_);
    return !group_.empty();
  }
  void advance() override {
    RunPosition& position = *any_position_;
    if (after_.epoch != position.epoch) position.restart_epoch();
    position.epoch = after_.epoch;
    position.loader.row = after_.row;
  }
  void close_epoch(bool whole) override {
    if (whole && began_whole_ && any_position_->samples_seen == seen_before_)
      from_outside([this] { throw_nothing_usable(); });
  }
  int64_t samples_per_epoch() const override { return data_.rows("train"); }

  /// Training batches, none at the end of the epoch. @param place moves behind them
  std::vector<Step> next_group_from(Place& place) {
    return next_group([&] {
      auto step = next_step("train", place, dropped_in_epoch_);
      if (step) place.row += step->rows_of_step;
      return step;
    });
  }
  /// @param place of the first row of the step @param dropped counts what is left out
  /// @return none past the end of the split, on all ranks
  std::optional<Step> next_step(const std::string& split, const Place& place, DropCounts& dropped) {
    const auto read = [&](int64_t first, int64_t count) {
      auto batch = data_.batch(split, place.epoch, first, count);
      if constexpr (requires { data_.read_ahead(split, place.epoch, first, count); })
        data_.read_ahead(split, place.epoch, first + session_.group().size() * count, count);
      return batch;
    };
    auto step = rank_batch<decltype(Step::batch)>(
        session_.group(), data_.rows(split), place.row, batch_size_, read);
    if (step) step->batch.drops.report(split, dropped_[split], dropped);
    return step;
  }

  /// The mean loss over the samples of all ranks in the first rows of a split.
  /// @param loss_of gives the mean over this rank's share of a step, never an empty one: [], on the device
  /// @return none without samples @throws StoppedError
  template <class LossOf>
  std::optional<double> mean_loss_of_split(const std::string& split,
                                           int64_t rows,
                                           DropCounts& dropped,
                                           LossOf&& loss_of) {
    LossSum sum;
    int64_t samples = 0;
    for (int64_t row = 0; row < rows;) {
      session_.throw_if_stop_asked();
      const auto step = from_outside([&] {
        return next_step(split, {any_position_->epoch, row}, dropped);
      });
      if (!step) break;
      if (step->size() > 0) sum.add(loss_of(*step), static_cast<double>(step->size()));
      samples += step->samples_of_step;
      row += step->rows_of_step;
      session_.progress().stage(
          fmt::format("loss of the split {}: {}", split, counted(samples, "sample")));
    }
    if (samples == 0) return std::nullopt;
    return session_.group().sum({sum.value()}, "losses of " + split).front() /
           static_cast<double>(samples);
  }

  Data data_;
  std::vector<Step> group_;      // the batches of the next update
  Place after_;                  // behind all that the next step takes
  DropCounts dropped_in_epoch_;  // of the split train, since this start or the epoch began

 private:
  const int64_t batch_size_;
  std::map<std::string, DropCounts> dropped_;  // by split, in all epochs
  bool began_whole_ = false;
  int64_t epoch_ = 0, seen_before_ = 0;  // where the epoch was opened
};

}  // namespace dalle2
