// SPDX-License-Identifier: MIT
// Steps over rows that every rank can read: the ranks take batches of consecutive rows.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/stop_signal.h"
#include "dist/process_group.h"

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

/// The steps from `row` on, one a call, none past the end.
/// @param step_at gives the RankBatch of the step that begins at a row
template <class StepAt>
auto steps_from(int64_t row, StepAt step_at) {
  return [row, step_at]() mutable {
    auto step = step_at(row);
    if (step) row += step->rows_of_step;
    return step;
  };
}

}  // namespace dalle2
