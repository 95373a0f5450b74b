// SPDX-License-Identifier: MIT
// Adapters (Hu et al. 2021) by the names of their layers, and what they make of the weights.
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

}  // namespace dalle2
