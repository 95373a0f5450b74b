// SPDX-License-Identifier: MIT
// Records, pictures and captions as TensorBoard event files.
#pragma once

#include <memory>
#include <string>

#include "config/shared/tracker_config.h"
#include "tracker/loggers.h"

namespace dalle2 {

/// The folder of data_path with the event files, unless the config names another.
inline constexpr const char* kTensorboardFolder = "tensorboard";

/// Numbers become scalars of the record's names; texts, captions and errors TensorBoard's texts;
/// pictures "{section}/{number}".
std::unique_ptr<Logger> make_tensorboard_logger(const TensorboardLogConfig& config,
                                                const std::string& data_path);

}  // namespace dalle2
