// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A config as it may be shown, stored and sent to somebody: each text in it, at any depth, as
/// public_url() shows it, and no comments, which may say anything. A text that is no JSON comes back as
/// it is. What was cleaned once stays the same when it is cleaned again, so that a stored config can be
/// compared with another.
std::string public_config(const std::string& json);

}  // namespace dalle2
