// SPDX-License-Identifier: MIT
// A saver's config on its own, for files that wait for being sent.
#pragma once

#include <string>

#include "config/shared/tracker_config.h"

namespace dalle2 {

/// The config as JSON, without the secrets of urls, with `target` as its only target.
std::string save_config_json(const SaveConfig& config, const std::string& target);

/// The config that save_config_json() wrote. @throws ConfigError
SaveConfig read_save_config(const std::string& json, const std::string& origin);

}  // namespace dalle2
