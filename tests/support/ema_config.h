// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json.hpp>

#include "config/shared/train_options.h"

namespace dalle2::test {

/// The options of a fixture that EMAModel made; what it does not give has its default.
inline EmaConfig ema_config(const nlohmann::json& json) {
  EmaConfig config;
  config.decay = json.value("decay", config.decay);
  config.min_decay = json.value("min_decay", config.min_decay);
  config.update_after_step = json.value("update_after_step", config.update_after_step);
  config.use_ema_warmup = json.value("use_ema_warmup", config.use_ema_warmup);
  config.inv_gamma = json.value("inv_gamma", config.inv_gamma);
  config.power = json.value("power", config.power);
  return config;
}

}  // namespace dalle2::test
