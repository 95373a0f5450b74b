// SPDX-License-Identifier: MIT
// The name of a run, by which its files are known again wherever they are moved or copied.
#pragma once

#include <string>

namespace dalle2 {

/// A random UUID (RFC 9562, version 4): "0f8fad5b-d9cb-469f-a165-70867728950e".
/// @throws ResourceError if the system gives no random bytes
std::string make_run_id();
/// Whether `text` has the form of such an id.
bool is_run_id(const std::string& text);

}  // namespace dalle2
