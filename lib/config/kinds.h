// SPDX-License-Identifier: MIT
// The kinds of run, each with a root key of its own.
#pragma once

#include <string>
#include <vector>

#include "config/reader.h"

namespace dalle2 {

/// What to say of a kind that cannot be trained yet, behind its name.
inline constexpr const char* kLaterKind =
    "is not available yet: this version trains decoders, priors and VAEs";

/// Root keys that no reader calls unknown: those of all kinds, and "$schema", by which editors find
/// the schema.
const std::vector<std::string>& known_root_keys();

/// Adds a fault for each root key of a kind other than `kind`.
void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings);

}  // namespace dalle2
