// SPDX-License-Identifier: MIT
// What may stand in `save_latest_to` and its siblings.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace dalle2 {

/// What a placeholder stands for, which decides the format specs it may have.
enum class PlaceholderType { integer, real, text, list };

/// A part of a target's name that is filled in at each save: `{epoch}`.
struct Placeholder {
  const char* name;
  PlaceholderType type;
};

/// What is wrong with a target that may hold `known` placeholders, in the grammar of
/// python_format(); nothing if it is right.
std::optional<std::string> template_fault(const std::string& target,
                                          std::span<const Placeholder> known);

/// What is wrong with a folder without placeholders (`save_meta_to`); nothing if it is right.
std::optional<std::string> folder_fault(const std::string& target);

}  // namespace dalle2
