// SPDX-License-Identifier: MIT
// Stages of one cascade that were trained in separate runs (/train/unet_training_mask), in one file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"

namespace dalle2 {

/// A cascade of the stages of several files.
struct JoinedStages {
  Value checkpoint;
  std::vector<std::string> givers;  ///< the file of each stage; empty for one that no file holds
};

/// Joins checkpoints or model files of decoders. Of each stage the file that trained it gives the
/// weights, the average and the optimizer's state, bit for bit; a stage that none of them trained
/// comes from a file that only holds it. Where the run of a stage stood is not kept. The config is
/// that of `config_path` (a training file), else that of the lowest stage's file.
/// @param averaged {version, model, config} with averaged weights alone
/// @throws ConfigError naming stage and files where two trained the same one, or hold different
/// weights of it, or differ in what the decoder is or how it draws; DataError
JoinedStages join_stages(const std::vector<std::string>& paths,
                         const std::optional<std::string>& config_path,
                         bool averaged);

}  // namespace dalle2
