// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace dalle2 {

/// Whether a text can name a repository of the Hugging Face hub: owner/name, of letters, digits, '-',
/// '.' and '_'.
bool is_hub_repo(std::string_view repo);

}  // namespace dalle2
