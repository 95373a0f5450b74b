// SPDX-License-Identifier: MIT
// Adapters (Hu et al. 2021) by the names of their layers, what they make of the weights, and their files:
// safetensors in the layout of diffusers' pytorch_lora_weights.
#pragma once

#include "checkpoint/state_dict.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

/// The layer's weight W becomes W + alpha / rank * up down.
struct LoraWeights {
  at::Tensor down;  ///< [rank, in], or [rank, in, k, k] of a convolution
  at::Tensor up;    ///< [out, rank], or [out, rank, 1, 1]
  double alpha = 0;
};

struct LoraAdapters {
  std::vector<std::pair<std::string, LoraWeights>>
      layers;        ///< by name, "unets.0.mid_attn.fn.fn.to_q"
  StateDict others;  ///< entries that belong to no adapter, such as trained biases
};

/// Sorts the entries `{layer}.lora.down.weight` and `.lora.up.weight` into adapters. A strength is that
/// of the entry `{layer}.alpha`, else `alpha`, else the rank.
/// @param where precedes the text of errors
/// @throws DataError for one half of an adapter without the other, or of another rank
LoraAdapters lora_adapters(const StateDict& tensors,
                           std::optional<double> alpha,
                           const std::string& where);

/// Whether any entry is of an adapter.
bool has_lora(const StateDict& tensors);
/// The same of a checkpoint, or of a bare state dict.
bool has_lora(const Cursor& checkpoint);

/// `weights` with the adapters in them and all floating tensors as float32; the names, and the
/// tensors no adapter belongs to, stay. `others` take the places of the entries of their names.
/// @param where as above @param scale the strength is multiplied by it; of `others` it is the share
/// of the way from the weights' own value
/// @throws DataError naming the layers that are not there or have other sizes
StateDict merged_lora(const StateDict& weights,
                      const LoraAdapters& adapters,
                      const std::string& where,
                      double scale = 1.0);
/// Of a state dict that holds weights and adapters: the plain weights. Trained biases are in their
/// places already: `scale` does not change them.
StateDict merged_lora(const StateDict& weights,
                      double alpha,
                      const std::string& where,
                      double scale = 1.0);

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
