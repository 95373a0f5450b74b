// SPDX-License-Identifier: MIT
// What the log says about a step, in every kind of run.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "run/loss_window.h"
#include "tracker/record.h"
#include "trainer/step_times.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Names in the log for the values of a part of the model.
struct PartMetricNames {
  std::string loss, losses_not_finite, ema_decay, learning_rate, grad_norm, skipped_updates,
      loss_scale;
};

/// Values of each trained part: its loss if there is a finite one, decay, rate, gradient norm,
/// skipped updates if there are any. Waits for the device.
/// @param names one a part @param losses one a trained part
void add_part_values(LogRecord& record,
                     const Trainer& trainer,
                     const std::vector<PartMetricNames>& names,
                     const std::vector<LossAverage>& losses);

/// "Seconds data" ... "Seconds save": a step's average since the last call; "Memory peak MiB": the
/// process's; "CUDA memory peak MiB" on a GPU. Waits for nothing.
void add_process_values(LogRecord& record, StepTimes& times, const c10::Device& device);

}  // namespace dalle2
