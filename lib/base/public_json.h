// SPDX-License-Identifier: MIT
#pragma once

#include "base/untrusted_json.h"

namespace dalle2 {

/// Every text in `value` as public_url() shows it, but for the place of a shard's number ("{}"),
/// which is no secret, and without which a config could not be read again.
/// @return true if something was taken out
bool take_out_secrets(Json& value);

}  // namespace dalle2
