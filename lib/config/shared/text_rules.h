// SPDX-License-Identifier: MIT
// What certain texts of a config may say: the targets of savers, the names of devices.
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

/// What is wrong with the name of a device: right are `cpu`, `cuda`, and `cuda:N` with a number N
/// of at most four digits. Whether there is such a device is not asked.
std::optional<std::string> device_fault(const std::string& name);

}  // namespace dalle2
