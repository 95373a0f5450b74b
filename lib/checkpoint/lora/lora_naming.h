// SPDX-License-Identifier: MIT
// The names that adapters of text encoders and unets have in files of diffusers and PEFT, and the
// conversions between them. The tensors are not touched.
//
//   old        {layer}.to_q_lora.down.weight                   (diffusers before 0.22)
//   diffusers  {layer}.q_proj.lora_linear_layer.down.weight    (text encoder)
//   unet       {layer}.to_q.lora.down.weight                   (unet; ours)
//   peft       {layer}.q_proj.lora_A.weight, {layer}.to_q.lora_A.weight
//
// The first pattern of a table that a name contains applies; `.processor.` becomes `.` in all
// names.
#pragma once

#include "checkpoint/state_dict.h"

#include <string>

namespace dalle2 {

/// The same tensors under other names.
/// @param naming the word that `convert --lora-naming` takes:
///   diffusers  convert_state_dict_to_diffusers: old or PEFT names to those of diffusers; names that
///              are diffusers' already stay
///   peft       convert_state_dict_to_peft: names of a text encoder, old or of diffusers
///   old        names of diffusers, PEFT or a unet to the old ones, where there are old ones
///   unet       names of a unet, of PEFT or old, to `{layer}.lora.down.weight`; others stay
///   unet-peft  convert_unet_state_dict_to_peft: names of a unet; others stay
/// @throws ConfigError for another word; DataError "Could not automatically infer state dict type"
/// for names that `diffusers` and `peft` do not know
StateDict with_lora_naming(const StateDict& tensors, const std::string& naming);

}  // namespace dalle2
