// SPDX-License-Identifier: MIT
#include "run/decoder/decoder_run.h"

#include <torch/types.h>

#include "base/log.h"
#include "metrics/script/script_archive.h"
#include "run/decoder/decoder_evaluation.h"

namespace dalle2 {
namespace {

/// The figures themselves, without their spread: a line of a terminal holds no more.
ShownRecord shown_metrics(const MetricValues& found) {
  ShownRecord shown;
  for (const auto& [name, value] : found.values) {
    if (name.ends_with("_std") || name.ends_with("_standard_error")) continue;
    if (name == "PR_recall") {
      shown.back().values.emplace_back(value);
    } else {
      shown.push_back({.label = name == "PR_precision" ? "P/R" : name.substr(0, name.find('_')),
                       .values = {value}});
    }
  }
  return shown;
}

/// Errors while the figures are computed are listed in their `faults`. @throws StoppedError
MetricValues compute_figures(const ImageMetrics& metrics) {
  try {
    return metrics.compute();
  } catch (const StoppedError&) {
    throw;
  } catch (const std::exception& error) {
    return {.values = {}, .faults = {last_message(error)}, .notes = {}};
  }
}

}  // namespace

std::optional<int64_t> DecoderRun::accumulate() {
  return pass_group(group_, trained_unets_, [&](const Batch& batch, const BatchShare& share) {
    const DecoderInputs inputs = timed(&session_.times(), StepPhase::kCopy, [&] {
      return to_inputs(batch, session_.device(), clip_);
    });
    for (const int64_t unet : trained_unets_) {
      const at::Generator random =
          session_.generator(fmt::format("train unet {}", unet), position_.epoch, batch.row);
      trainer_.step(inputs, unet, random, std::nullopt, share);
    }
  });
}

void DecoderRun::add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) {
  const DecoderInputs inputs = to_inputs(batch, session_.device(), clip_);
  for (const int64_t unet : trained_unets_) {
    // The same draws in every epoch: the losses of two epochs then differ by the weights alone.
    const at::Generator random =
        session_.generator(fmt::format("validate unet {}", unet), /*epoch=*/0, batch.row);
    sums[static_cast<size_t>(unet - 1)].add(trainer_.evaluate(inputs, unet, random));
  }
}

void DecoderRun::evaluate_epoch() {
  if (!metrics_) return;
  log_info("eval", "Evaluating epoch {}: {}", position_.epoch, metrics_->description());
  log_metrics(compute_metrics());
}

/// A fault in the pictures is no reason to lose a run: it is logged, and the run continues.
/// @return on rank 0; nothing on the others
MetricValues DecoderRun::compute_metrics() {
  ProcessGroup& group = session_.group();
  const HeldAverages averages = trainer_.hold_averages();
  metrics_->reset();
  std::string fault;
  session_.together("drawing for the metrics", [&] {
    try {
      show_pairs({.data = &data_,
                  .count = config_.evaluate.n_evaluation_samples,
                  .batch_size = config_.data.batch_size,
                  .seed = config_.seed,
                  .draw = {config_.train.cond_scale,
                           trained_unets_.front(),
                           trained_unets_.back(),
                           session_.device(),
                           clip_},
                  .clip_of_score = clip_of_score_.get(),
                  .sample = [this](const auto& options) { return trainer_.sample(options); },
                  .on_step =
                      [this](const std::string& where) {
                        session_.throw_if_signalled();
                        session_.progress().stage(where);
                      }},
                 {group.rank(), group.size()},
                 *metrics_);
    } catch (const StoppedError&) {
      throw;
    } catch (const std::exception& error) {
      fault = last_message(error);
    }
  });
  session_.progress().pause();
  for (const std::string& each : group.gather_texts(fault, "faults of the evaluation")) {
    if (each.empty()) continue;
    metrics_->reset();
    return {.values = {}, .faults = {each}, .notes = {}};
  }
  metrics_->gather(group);
  MetricValues found;
  session_.together("computing the metrics", [&] {
    if (!group.is_main()) return;
    found = compute_figures(*metrics_);
    keep_real_features(config_, *metrics_);
  });
  metrics_->reset();  // all features of all ranks: no memory for the next epoch
  return found;
}

/// The state is saved before pictures are drawn, which may take long and are for people to look at.
void DecoderRun::sample_epoch() {
  log_info("sample", "Sampling and saving after epoch {}", position_.epoch);
  save_epoch();
  pictures_.draw_all();
}

void DecoderRun::log_metrics(const MetricValues& found) {
  for (const std::string& fault : found.faults) log_warning("eval", "{}", fault);
  for (const std::string& note : found.notes) log_warning("eval", "{}", note);
  if (found.values.empty()) return;
  LogRecord record(found.values.begin(), found.values.end());
  record.emplace_back("Evaluation Samples", found.images);
  if (found.left_out > 0) record.emplace_back("Evaluation Samples Left Out", found.left_out);
  record.emplace_back("Evaluation", metrics_->description());
  session_.tracker().log(record, trainer_.first_steps(), shown_metrics(found));
}

}  // namespace dalle2
