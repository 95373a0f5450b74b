// SPDX-License-Identifier: MIT
// What the log says about a step and about what an epoch left out, in every kind of run.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <vector>

#include "data/loader/drop_log.h"
#include "run/loop/loss_window.h"
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

/// Of each trained part. Waits for the device.
/// @param losses one a trained part
std::vector<PartValues> part_values(const Trainer& trainer, const std::vector<LossAverage>& losses);

/// For log.jsonl: the loss if there is a finite one, decay, rate, gradient norm, skipped updates if
/// there are any.
/// @param names one a part
void add_part_values(LogRecord& record,
                     const std::vector<PartValues>& parts,
                     const std::vector<PartMetricNames>& names);

/// For people: "loss 0.3065 0.4217  lr 1.98e-3  grad 0.42 0.51  108 samples/s  2 skipped", a value a
/// part; one rate where all have the same, skipped updates of all parts together.
ShownRecord shown_step(const std::vector<PartValues>& parts, double samples_per_second);

/// "Seconds data" ... "Seconds save": a step's average since the last call; "Memory peak MiB": the
/// process's; "CUDA memory peak MiB" on a GPU. Waits for nothing.
void add_process_values(LogRecord& record, StepTimes& times, const c10::Device& device);

/// What an epoch of a split left out: a warning, and a record of counts by reason; nothing if nothing
/// was.
void report_drops(Tracker& tracker,
                  int64_t steps,
                  const std::string& split,
                  const DropCounts& dropped);

}  // namespace dalle2
