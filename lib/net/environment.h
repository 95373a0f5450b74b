// SPDX-License-Identifier: MIT
// The environment and files of other tools, from which logins come.
#pragma once

#include <string>

namespace dalle2 {

/// The variable's text; empty if it is not set.
std::string environment(const char* name);

/// Without blanks and line breaks at both ends.
std::string trimmed(const std::string& text);

}  // namespace dalle2
