// SPDX-License-Identifier: MIT
// What has changed between the config in a checkpoint and the one that a run continues with.
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// Differences, each as "/decoder/timesteps: the checkpoint has 1000, this config 500".
struct ConfigChanges {
  /// What gives the weights or the data another meaning: all of `decoder` and `prior` but what
  /// concerns only sampling, regularisation (dropout, dropped conditions), augmentation (crops),
  /// the weight of a loss, memory, or nothing at all; the seed; what decides which sample is in
  /// which split and which embedding belongs to it (`data.splits`, the numbers of the shards,
  /// `data.num_data_points`, `data.index_width`); the size of preprocessed pictures; and, between
  /// two runs with adapters, their rank, strength and layers.
  std::vector<std::string> meaning;
  /// The rest: learning rate, batch size, epochs, device, places of shards, logging, ... Not the
  /// places of the run's own files.
  std::vector<std::string> other;
  /// Of these, what decides the order of an epoch's samples: within an epoch its place would mean
  /// another one.
  std::vector<std::string> order;
};

/// What the texts call the two configs.
struct ConfigNames {
  std::string saved = "the checkpoint", current = "this config";
};

/// Compares two configs as JSON texts, `saved` of a checkpoint and `current` as Loaded::full_json.
/// Where both can be read, keys that one of them lacks count as their defaults; else (a config of
/// the reference that is refused here) such keys are no change. A value and null are a change; a
/// single value and a list of equal values are not, nor are 1 and 1.0. A text that is not JSON
/// object gives no changes; nothing is thrown.
/// @param names of the two in the texts
ConfigChanges compare_for_resume(const std::string& saved_full_json,
                                 const std::string& current_full_json,
                                 const ConfigNames& names = {});

}  // namespace dalle2
