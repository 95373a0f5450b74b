// SPDX-License-Identifier: MIT
// From one file format to the other, and the averaged weights of a checkpoint.
#pragma once

#include "checkpoint/lora/lora_file.h"
#include "checkpoint/state_dict.h"

#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// Reads a .pth file or a safetensors file, whichever it is. For safetensors the result is a dict
/// of the tensors, or the checkpoint that convert_checkpoint() made the file from.
/// @throws DataError
Value read_checkpoint(const std::string& path);
/// The same without looking at the contents of tensors (read_pth_outline()). @throws DataError
Value read_checkpoint_outline(const std::string& path);
bool looks_like_safetensors(const std::string& path);

/// What names begin with in the state dict of an ema_pytorch.EMA.
inline const std::string kEmaModel = "ema_model.", kOnlineModel = "online_model.";

/// Whether averaged_weights() finds some in a checkpoint or in the file of an EMA
/// wrapper.
bool has_averages(const Cursor& checkpoint);

/// {model, what belongs to any model, and those entries of the checkpoint that are there}.
Dict with_entries(const StateDict& model,
                  const Cursor& checkpoint,
                  const std::vector<const char*>& keys);

/// The averaged weights under the names of the live ones: a decoder's `ema` (its unets; all else
/// from `model`), a prior's `ema_model`, or a file of an EMA wrapper.
/// @throws DataError if the checkpoint has none
StateDict averaged_weights(const Cursor& checkpoint);

enum class Weights {
  kAll,       ///< the whole file
  kAveraged,  ///< {model: averaged weights, version, config}, and what belongs to adapters or a CLIP
};

struct ConvertReport {
  size_t tensor_count = 0;
  std::vector<std::string> replaced;  ///< paths of objects that became text
};

/// Writes `in` as `out`, whose extension (.pth, .pt, .safetensors) gives the format. Safetensors
/// keeps what is not a tensor as JSON in its metadata, so that converting back gives an equal
/// checkpoint.
/// @param merge adapters to merge into the weights, of which {model, version, config} is written, or
/// a bare state dict if `in` is one: those of its files, or, without any, those that `in` holds
/// @throws DataError (also if there are no adapters, or if they belong to another network),
/// ConfigError for another extension
ConvertReport convert_checkpoint(const std::string& in,
                                 const std::string& out,
                                 Weights weights,
                                 const std::optional<LoraChoice>& merge = {});

/// Writes a checkpoint, or a bare state dict, as `out`, whose ending says the format.
/// @throws ConfigError for another ending
ConvertReport write_checkpoint(const std::string& out, Value root);
/// Whether `out` is to be safetensors, and not .pth or .pt. @throws ConfigError for other endings
bool is_safetensors_name(const std::string& out);

}  // namespace dalle2
