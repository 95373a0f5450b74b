// SPDX-License-Identifier: MIT
// What RunCheckpoints saves.
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/this_process.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/pickle/value_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "run/checkpoints/run_checkpoints.h"
#include "run/device/compute_threads.h"
#include "run/loop/run_position.h"

namespace dalle2 {
namespace {

Extras with_config(Extras extras, const std::string& json) {
  extras.emplace_back("config", value_of_json(json));
  return extras;
}

}  // namespace

bool RunCheckpoints::is_amid_skips() const {
  const std::vector<int64_t> parts = trainer_.trained_parts();
  return std::any_of(parts.begin(), parts.end(), [this](int64_t part) {
    return trainer_.skipped_updates(part).in_a_row > 0;
  });
}

void RunCheckpoints::check() {
  session_.tracker().check();
  saving_.check();
}

void RunCheckpoints::check_state() const {
  const std::optional<std::string> part = trainer_.non_finite_part();
  if (!part) return;
  throw NonFiniteError(
      "the {} are not finite (epoch {}, sample {})\n  This state was not saved: the last "
      "checkpoint is from before, unless the run began with such weights. Lower /train/lr, or "
      "start from another checkpoint; `dalle2-train fsck` shows which are intact.",
      *part,
      position_.epoch,
      position_.loader.row);
}

void RunCheckpoints::save(bool is_best, bool is_latest) {
  check_state();
  position_.gather(session_.group());
  check_same_weights();
  // Of a state that is spread over the ranks each gives its part; rank 0 writes.
  if (!session_.group().is_main() && !trainer_.is_sharded()) return;
  const ProcessGroup::BusyScope busy(session_.group(), "saving");
  session_.times().begin(StepPhase::kSave);
  const HeldAverages averages = trainer_.hold_averages();
  Dict own;
  own.set("version", program_version());
  const SavedFacts facts = {.run_id = session_.tracker().run_id(),
                            .samples_seen = position_.samples_seen,
                            .steps = trainer_.first_steps(),
                            .amid_skips = is_amid_skips(),
                            .log_lines = session_.tracker().log_lines()};
  add_facts(facts, own);
  Extras extras = position_entries(position_, own);
  own.set("recent_losses", losses_.state());
  if (roll_backs() > 0) {
    own.set("roll_backs", roll_backs());
    own.set("learning_rate_factor", trainer_.learning_rate_factor());
  }
  if (data_size_.count > 0) own.set("data_size", data_size_.count);
  if (session_.device().is_cpu()) {
    const ComputedWith computed = computing_with();
    own.set("threads", computed.threads);
    own.set("processor", computed.processor);
  }
  trainer_.add_choices(own);
  if (!data_size_.names.empty()) own.set("data_names", data_size_.names);
  extras.emplace_back(kOwnState, std::move(own));
  Value checkpoint = trainer_.state(with_config(std::move(extras), texts_.full_json));
  Dict own_of_model;
  own_of_model.set("run_id", facts.run_id);
  Extras of_model = {{kOwnState, std::move(own_of_model)}};
  Value model = trainer_.model_state(with_config(std::move(of_model), texts_.full_json));
  if (session_.group().is_main()) {
    start_saving({.is_best = is_best,
                  .is_latest = is_latest,
                  .amid_skips = facts.amid_skips,
                  .position = {.samples_seen = position_.samples_seen,
                               .step = trainer_.first_steps(),
                               .epoch = position_.epoch},
                  .placeholders = position_placeholders(position_)},
                 std::move(checkpoint),
                 std::move(model));
  }
  session_.times().end(StepPhase::kSave);
}

/// A run that is stopping has nothing to do meanwhile, and needs no copy.
bool RunCheckpoints::saves_in_background() const {
  return config_.async_save && !session_.stopped();
}

/// @param checkpoint, model with the live tensors
void RunCheckpoints::start_saving(SaveRequest request, Value checkpoint, Value model) {
  if (std::optional<LoraFile> lora = trainer_.lora_state()) {
    // Adapters are small: a copy is made in any case.
    for (auto& [name, tensor] : lora->tensors)
      tensor = tensor.to(at::kCPU, at::kFloat, false, true);
    lora->run_id = session_.tracker().run_id();
    request.write_lora = [file = std::move(*lora)](const std::string& path) {
      write_lora_file(path, file);
    };
  }
  saving_.start(saves_in_background(),
                {std::move(checkpoint), std::move(model)},
                [this, request = std::move(request)](const auto& writers) {
                  SaveRequest with_writers = request;
                  with_writers.write_checkpoint = writers[0];
                  with_writers.write_model = writers[1];
                  save_or_wait(with_writers);
                });
}

/// The memory has what a full disk does not take, and the next save may find room. The best state is not
/// saved again.
void RunCheckpoints::save_or_wait(const SaveRequest& request) {
  constexpr int kMostFullDisks = 3;  // in a row
  try {
    session_.tracker().save(request);
    full_disks_ = 0;
  } catch (const DiskFullError& error) {
    if (request.is_best || ++full_disks_ == kMostFullDisks) throw;
    full_disk_ = error.what();
    log_warning(
        "ckpt",
        "epoch {}, step {}: the state is not saved, and the run continues: the next save tries "
        "again. {}",
        request.position.epoch,
        request.position.step,
        full_disk_);
  }
}

std::string RunCheckpoints::averages_folder() const {
  return session_.tracker().in_data_path(kAveragesFolder);
}

void RunCheckpoints::save_averages_if_due() {
  const std::optional<int64_t> every = config_.post_hoc_ema.save_every_n_steps;
  const auto is_due = [&](bool settled) { return trainer_.first_steps(settled) % *every == 0; };
  // The device is waited for only where the last update, if it was made, makes them due.
  if (every && is_due(/*settled=*/false) && is_due(/*settled=*/true)) save_averages();
}

void RunCheckpoints::save_averages() {
  const int64_t step = trainer_.first_steps();
  if (!config_.post_hoc_ema.save_every_n_steps || step == averages_saved_at_) return;
  check_state();
  averages_saved_at_ = step;
  if (!session_.group().is_main() && !trainer_.is_sharded()) return;
  const ProcessGroup::BusyScope busy(session_.group(), "saving averages");
  session_.times().begin(StepPhase::kSave);
  Value averages = trainer_.post_hoc_state(with_config({}, texts_.full_json));
  if (session_.group().is_main()) {
    const std::string path = averages_folder() + "/" + averages_name(step);
    saving_.start(saves_in_background(), {std::move(averages)}, [this, path](const auto& writers) {
      session_.tracker().store(path, writers.front());
    });
  }
  session_.times().end(StepPhase::kSave);
}

}  // namespace dalle2
