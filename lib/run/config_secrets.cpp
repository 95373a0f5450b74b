// SPDX-License-Identifier: MIT
#include "run/config_secrets.h"

#include "tracker/public_config.h"

namespace dalle2 {

std::string without_url_secrets(const std::string& json) {
  return public_config(json);
}

}  // namespace dalle2
