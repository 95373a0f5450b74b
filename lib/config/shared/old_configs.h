// SPDX-License-Identifier: MIT
// Configs as versions of dalle2-pytorch wrote or read them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/untrusted_json.h"
#include "config/shared/layout.h"

namespace dalle2 {

/// Whether the root key `written_by` has a value: a config with all values has it as null.
inline bool names_version(const Json& root) {
  return root.contains("written_by") && !root["written_by"].is_null();
}

/// Of the root key `written_by`; none without a value. @param where precedes the text of errors
/// @throws ConfigError for what is no version
std::optional<Version> written_by(const Json& root, const std::string& where);

/// Leaves of a config that one section, and what else says what it means and how pictures are read; other sections get
/// defaults, where they have. @return pointers to the section and to what else is left
std::vector<std::string> keep_section(Json& root, const std::string& section);

/// Gives a config what its version, written_by(), understood by leaving a key out, where 1.15.6 understands something
/// else, and takes out keys that only old trainers read. Changes nothing of a config of kLastVersion.
/// @param kind "decoder" or "prior" @param where as of written_by()
void complete_old_config(Json& root, const std::string& kind, const std::string& where);

/// Leaves out of a decoder's config with all values what keeps 1.15.6 from building the decoder: nulls and an extension
/// that is off. @return the pointers of extensions that are on, of which 1.15.6 knows nothing
std::vector<std::string> fit_reference(Json& root);

}  // namespace dalle2
