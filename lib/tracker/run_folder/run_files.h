// SPDX-License-Identifier: MIT
// Names of the files and folders of data_path that belong to one run.
#pragma once

#include "io/files/folder_names.h"  // kRecordFile, kImagesFolder, kResultsFolder, kOutboxFolder

namespace dalle2 {

inline constexpr const char* kCheckpointFile = "checkpoint.pth";
inline constexpr const char* kModelFile = "model.pth";
inline constexpr const char* kLoraFile = "lora.safetensors";
inline constexpr const char* kLogFile = "log.jsonl";
inline constexpr const char* kSnapshotsFolder = "snapshots";
inline constexpr const char* kAveragesFolder = "averages";  ///< of /train/post_hoc_ema
/// What is newer than the checkpoint that the run went back to.
inline constexpr const char* kAbandonedFolder = "abandoned";
/// Of a state that is spread over ranks, while it is put together.
inline constexpr const char* kGatheredFile = "gathered";
/// What /tracker/load names, if that is not a file of this machine.
inline constexpr const char* kLoadedFile = "loaded_checkpoint.pth";
/// README.md of a repository on the hub, in the outbox while it is put there.
inline constexpr const char* kCardFile = "model_card.md";
/// How far each follower has got in log.jsonl; a hint.
inline constexpr const char* kFollowersFile = "followers.json";
/// Where the loggers log to, for a resume.
inline constexpr const char* kAutoResumeFile = "auto_resume.json";
/// Event files of TensorBoard, unless the config names another folder.
inline constexpr const char* kTensorboardFolder = "tensorboard";

/// What a run writes into its folder, besides its config, run.json and run.lock.
inline constexpr const char* kOwnNames[] = {kCheckpointFile,
                                            kModelFile,
                                            kLoraFile,
                                            kLogFile,
                                            kAutoResumeFile,
                                            kFollowersFile,
                                            kSnapshotsFolder,
                                            kAveragesFolder,
                                            kAbandonedFolder,
                                            kImagesFolder,
                                            kResultsFolder,
                                            kTensorboardFolder,
                                            kOutboxFolder};

}  // namespace dalle2
