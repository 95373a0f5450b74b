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
#include <vector>

namespace dalle2 {

/// convert_state_dict_to_diffusers: old or PEFT names to those of diffusers; names that are
/// diffusers' already stay.
/// @throws DataError "Could not automatically infer state dict type" for others
StateDict diffusers_naming_of_lora(const StateDict& tensors);

/// convert_state_dict_to_peft: names of a text encoder, old or of diffusers. @throws DataError
StateDict peft_naming_of_lora(const StateDict& tensors);

/// convert_unet_state_dict_to_peft: names of a unet. Others stay.
StateDict unet_peft_naming_of_lora(const StateDict& tensors);

/// The way back: names of a unet, of PEFT or old, to `{layer}.lora.down.weight`. Others stay.
StateDict unet_naming_of_lora(const StateDict& tensors);

/// Names of diffusers, PEFT or a unet to the old ones, where there are old ones; others stay.
StateDict old_naming_of_lora(const StateDict& tensors);

/// What _set_state_dict_into_text_encoder gives PEFT: the entries whose names begin with `prefix`,
/// without any occurrence of it, in PEFT's naming. @throws DataError as above
StateDict text_encoder_lora(const StateDict& tensors, const std::string& prefix);

/// The conversions by the word that `convert --lora-naming` takes.
const std::vector<std::string>& lora_namings();
/// @throws ConfigError for a word that is not one of lora_namings(); DataError
StateDict with_lora_naming(const StateDict& tensors, const std::string& naming);

}  // namespace dalle2
