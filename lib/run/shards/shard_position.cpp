// SPDX-License-Identifier: MIT
#include "run/shards/shard_position.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "config/reading/reflect.h"
#include "run/loop/run_position.h"

namespace dalle2 {

void ShardPosition::fields(PositionVisitor& visitor) {
  visitor.field("epoch", epoch);
  visitor.field("sample", loader.row);
  visitor.field("next_task", next_task);
  visitor.field("validation_losses", validation_losses);
  visitor.field("samples_seen", samples_seen);
  visitor.own("slices", slices);
  visitor.own("samples_at_last_save", samples_at_last_save);
  visitor.own("samples_per_epoch", samples_per_epoch);
  visitor.own("validation_loss", validation_loss);
}

void ShardPosition::guess_own_fields() {
  // At the end of an epoch the next one begins as any other, not in the one lane of a count of samples.
  loader = next_task == kTrainTask && loader.row > 0 ? LoaderPosition::after_samples(loader.row)
                                                     : LoaderPosition{};
  samples_at_last_save = loader.row;
}

void ShardPosition::restart_epoch() {
  RunPosition::restart_epoch();
  samples_at_last_save = 0;
}

void ShardPosition::restart_with_other_data() {
  restart_epoch();
  if (next_task != kTrainTask) ++epoch;
  next_task = kTrainTask;
  slices = dealt;
  samples_per_epoch = 0;
  has_other_data = true;
  forget_losses();
}

void ShardPosition::forget_losses() {
  validation_losses.clear();
  validation_loss.reset();
  actions_due = 0;
}

std::string ShardPosition::description() const {
  const auto best = std::min_element(validation_losses.begin(), validation_losses.end());
  return fmt::format("epoch {} having seen {} samples with minimum validation loss {}",
                     epoch,
                     samples_seen,
                     best == validation_losses.end() ? "N/A" : short_number(*best));
}

std::string ShardPosition::resumes_with() const {
  if (next_task == kTrainTask) return fmt::format("epoch {} at sample {}", epoch, loader.row);
  if (next_task == "val") return fmt::format("the validation of epoch {}", epoch);
  return fmt::format("sampling and saving after epoch {}", epoch);
}

bool ShardPosition::is_best() const {
  return validation_loss && std::all_of(validation_losses.begin(),
                                        validation_losses.end(),
                                        [&](double earlier) { return *validation_loss < earlier; });
}

int64_t ShardPosition::slices_of_run() const {
  return std::clamp<int64_t>(slices, 0, static_cast<int64_t>(most::kRanks));
}

std::optional<int64_t> slices_of(const Cursor& checkpoint) {
  if (!checkpoint.value().is_dict()) return std::nullopt;
  ShardPosition saved;
  read_position(saved, checkpoint);
  const int64_t slices = saved.slices_of_run();
  return slices > 0 ? std::optional(slices) : std::nullopt;
}

}  // namespace dalle2
