// SPDX-License-Identifier: MIT
// Names of the files and folders of data_path that belong to one run.
#pragma once

#include "io/files/folder_names.h"  // kRecordFile, kImagesFolder, kResultsFolder

namespace dalle2 {

inline constexpr const char* kCheckpointFile = "checkpoint.pth";
inline constexpr const char* kModelFile = "model.pth";
inline constexpr const char* kLoraFile = "lora.safetensors";
inline constexpr const char* kLogFile = "log.jsonl";
inline constexpr const char* kSnapshotsFolder = "snapshots";
inline constexpr const char* kAveragesFolder = "averages";  ///< of /train/post_hoc_ema
/// Of a state that is spread over ranks, while it is put together.
inline constexpr const char* kGatheredFile = "gathered";
/// What /tracker/load names, if that is not a file of this machine.
inline constexpr const char* kLoadedFile = "loaded_checkpoint.pth";
/// README.md of a repository on the hub, in the outbox while it is put there.
inline constexpr const char* kCardFile = "model_card.md";
/// What --clear-results removes, while the run that replaces it begins.
inline constexpr const char* kClearedFolder = ".cleared";
/// How many records Weights & Biases has.
inline constexpr const char* kWandbMarkFile = "wandb_mark.json";

}  // namespace dalle2
