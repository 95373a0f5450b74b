// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A text with "..." for each word that looks like a secret of a service: tokens of Hugging Face (hf_...),
/// keys of Weights & Biases (40 hexadecimal digits, wandb_v1_...) and of AWS. For what a user gave in a
/// wrong place; secrets of urls are those of base/public_url.h.
std::string without_tokens(const std::string& text);

}  // namespace dalle2
