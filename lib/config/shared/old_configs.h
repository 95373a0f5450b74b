// SPDX-License-Identifier: MIT
// Configs that versions of dalle2-pytorch before 1.15.6 wrote or read.
#pragma once

#include <string>

#include "base/untrusted_json.h"
#include "config/shared/layout.h"

namespace dalle2 {

/// Whether the root key `written_by` has a value: a config with all values has it as null.
inline bool names_version(const Json& root) {
  return root.contains("written_by") && !root["written_by"].is_null();
}

/// Of the root key `written_by`; kLastVersion without one. @throws ConfigError for what is no version
Version written_by(const Json& root);

/// Leaves of a config that one section, and what else says what it means; other sections get defaults, where they have.
void keep_section(Json& root, const std::string& section);

/// Gives a config what its version, written_by(), understood by leaving a key out, where 1.15.6 understands something
/// else, and takes out keys that only old trainers read. Changes nothing of a config of kLastVersion.
/// @param kind "decoder" or "prior"
void complete_old_config(Json& root, const std::string& kind);

}  // namespace dalle2
