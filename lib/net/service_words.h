// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// What a service says, for a message: "***" for each of our secrets in it, on one line, about
/// 200 bytes at most, without full stops at its end. A service may repeat the login that it refuses.
/// @param secrets what it must not show; empty ones are passed over
std::string service_words(std::string text, const std::vector<std::string>& secrets);

}  // namespace dalle2
