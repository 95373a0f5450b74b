// SPDX-License-Identifier: MIT
// Files of adapters: safetensors in the layout of diffusers' pytorch_lora_weights.
#pragma once

#include "checkpoint/lora/lora_weights.h"
#include "checkpoint/state_dict.h"

#include <string>
#include <vector>

namespace dalle2 {

/// What belongs to adapters besides their weights.
struct LoraInfo {
  int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> targets;
};

/// The entry "lora" of a checkpoint.
Dict to_dict(const LoraInfo& info);
/// @throws DataError
LoraInfo lora_info_of(const Cursor& entry);

/// Adapters under `unets.N.{layer}.lora.down.weight` and `.lora.up.weight`, and trained biases.
struct LoraFile {
  StateDict tensors;
  LoraInfo info;
  std::string run_id = {};  ///< of the run that trained them; empty: none
};
/// In the metadata of the file.
inline constexpr const char* kRunIdOfLora = "dalle2_train_run_id";

/// Writes whole or not at all. The metadata holds `rank`, `alpha`, `targets` (JSON), and
/// `lora_adapter_metadata`, which newer diffusers write: r, lora_alpha and target_modules.
void write_lora_file(const std::string& path, const LoraFile& file);

/// Reads a file of adapters, ours or diffusers', whose `unet.` stands for `unets.0.` (safetensors or
/// .pth). The strength is that of the metadata, else of `{layer}.alpha`, else the rank.
/// @throws DataError for a file without adapters, or with other names
LoraAdapters read_lora_file(const std::string& path);

/// Which adapters become a part of weights, and how strong.
struct LoraChoice {
  std::vector<std::string> files = {};  ///< one after the other; none: those of the checkpoint
  std::vector<double> scales = {};      ///< one for all, or one a file; none is 1
};

/// `weights` of a checkpoint with the chosen adapters merged into them; as they are if there are
/// none. @throws ConfigError for scales that have nothing to act on or are of another number;
/// DataError for files of adapters beside those that the checkpoint holds
StateDict with_adapters(const StateDict& weights,
                        const Cursor& checkpoint,
                        const LoraChoice& choice);

}  // namespace dalle2
