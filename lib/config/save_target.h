// SPDX-License-Identifier: MIT
// What may stand in `save_latest_to` and its siblings.
#pragma once

#include <optional>
#include <string>

namespace dalle2 {

/// What is wrong with a target that may hold {epoch} {sample} {next_task} {validation_losses}
/// {samples_seen} with Python format specs, `{{` and `}}` for braces; nothing if it is right.
std::optional<std::string> template_fault(const std::optional<std::string>& target);

/// What is wrong with a folder without placeholders (`save_meta_to`); nothing if it is right.
std::optional<std::string> folder_fault(const std::optional<std::string>& target);

}  // namespace dalle2
