// SPDX-License-Identifier: MIT
// Which version of dalle2-pytorch wrote a file: by what it says, by its tensors, or by what the user says.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/state_dict.h"
#include "config/shared/layout.h"

namespace dalle2 {

/// The versions whose networks have tensors of these names and shapes. @param kind "decoder" or "prior"
/// @throws DataError for tensors of no version, or of one before 0.14.0; `where` names the file
VersionRange versions_of_tensors(const StateDict& weights,
                                 const std::string& kind,
                                 const std::string& where);

/// `version`, a text or a pickled packaging.version.Version; none without one. @throws ConfigError for no version
std::optional<Version> said_version(const Cursor& checkpoint);

/// What a user says of a file's version.
struct ToldVersion {
  std::string version = {};         ///< "1.1.0"; "": nothing
  std::string by = "--written-by";  ///< where, for messages
};

/// The version whose layout a file has. @param weights its model
/// @throws ConfigError if the file does not say it, its tensors fit several, and `told` is empty; if the file, `told`
/// and the tensors contradict each other
Version version_of_file(const Cursor& checkpoint,
                        const StateDict& weights,
                        const std::string& kind,
                        const ToldVersion& told = {});

}  // namespace dalle2
