// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include "tracker/record.h"
#include "trainer/step_times.h"

namespace dalle2 {

/// "Seconds data" ... "Seconds save": a step's average since the last call; "Memory peak MiB": the
/// process's; "CUDA memory peak MiB" on a GPU. Waits for nothing.
LogRecord step_record(StepTimes& times, const c10::Device& device);

}  // namespace dalle2
