// SPDX-License-Identifier: MIT
// `--dry-run`: validates, finds what a run would find, builds the model and prints what it would
// take. Trains and writes nothing.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"
#include "run/checkpoints/run_checkpoints.h"
#include "run/loop/run_position.h"
#include "run/shards/shard_data.h"
#include "run/shards/shard_run.h"

namespace dalle2 {

/// An estimate of the most memory that a run takes, from one model and a few made-up steps.
struct PeakMemory {
  /// Weights, gradients, moments and averages. On the CPU also the program and the copies that are being
  /// saved; with a GPU, these are in host memory.
  uint64_t kept_bytes = 0;
  std::vector<uint64_t>
      activation_bytes;  ///< of a step of each network; 0 for one that is not trained

  /// The networks take their steps one after the other.
  uint64_t peak() const;
};

/// What a kind of run says about itself.
struct DryRunPlan {
  struct Network {
    std::string label;                          ///< "unet 1"
    std::string note;                           ///< after its size, e.g. "64 px"
    std::string prefix = "";                    ///< of its names in the model: "unets.0."
    std::shared_ptr<torch::nn::Module> module;  ///< null: not trained, and not held in memory
    NetworkMaker make = nullptr;                ///< one of that shape; needed where module is null
    /// Forward and backward pass of `batch` made-up samples.
    std::function<void(int64_t batch)> step;
  };
  std::shared_ptr<torch::nn::Module> model;  ///< with its adapters
  std::vector<Network> networks = {};
  int64_t batch_size = 0;
  bool has_lanes = true;    ///< lanes may share a batch: trainer/lanes.h
  bool cuda_graph = false;  ///< /train/cuda_graph
  /// Of stages that a loaded file gives and that are not trained: their bytes in each file.
  int64_t carried_bytes = 0;
  ConfigTexts texts = {};
  DataSize data_size = {};
  std::string data_path = "";  ///< of the tracker; finish_dry_run() sets it
  StartOptions start = {};     ///< --fresh, --back-to
  /// Makes the steps take less memory, if the config says how much they may take. Null: it cannot.
  /// @return lines that say how
  std::function<std::vector<std::string>(PeakMemory&)> fit_budget = nullptr;
};

/// The most that the tensors hold at a time which `work` makes on this thread. [bytes]
int64_t peak_tensor_bytes(const std::function<void()>& work);
PeakMemory peak_memory(const DryRunPlan& plan, const SharedTrainConfig& train, bool on_cpu);
/// What a step holds besides the weights and their gradients: a few steps show what a sample takes. Other
/// memory of the process has no part in it.
uint64_t activation_bytes(const DryRunPlan::Network& network,
                          const DryRunPlan& plan,
                          const SharedTrainConfig& train);

/// Samples and shards of each split, and the steps of an epoch of `processes`.
/// @param position that the run would resume from, or of its beginning: as it dealt the shards
void print_shards(ShardData& data,
                  const ShardPosition& position,
                  const ShardLoopConfig& loop,
                  const SharedTrainConfig& train,
                  int64_t processes);
/// What of them the options do not settle. @param pictures some of them
void print_pictures(const PictureTally& pictures, const DecodeOptions& options);
/// "steps: 10 per epoch, 30 in 3 epochs" @param batch_size of all processes together
void print_steps(int64_t epoch_samples, int64_t batch_size, const SharedTrainConfig& train);
/// Sizes of files and the peak of memory, and that nothing was written.
/// @param processes that share this machine's memory, or have a GPU each
/// @throws ConfigError if there is less memory, or less room on the disk of data_path, than that
void print_sizes(const DryRunPlan& plan,
                 const SharedTrainConfig& train,
                 const at::Device& device,
                 int64_t processes);

/// What follows once a kind has opened its data and built its networks as a start does. Checks, in the
/// order of a start, what a run would refuse: the device, the paths of the tracker, a loader's file
/// that does not fit the model. Then prints what the run would take.
/// @param position to be filled in from the file that the run would resume from
/// @param print_data says what the splits hold
void finish_dry_run(DryRunPlan& plan,
                    const TrackerConfig& tracker_config,
                    const SharedTrainConfig& train,
                    RunPosition& position,
                    int64_t processes,
                    const std::function<void()>& print_data);

}  // namespace dalle2
