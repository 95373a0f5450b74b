// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/autocast_mode.h>

namespace dalle2 {

/// Autocast of this thread for one kind of device, on or off for as long as this lives.
class AutocastState {
 public:
  AutocastState(at::DeviceType device, bool enabled, at::ScalarType dtype)
      : device_(device),
        was_enabled_(at::autocast::is_autocast_enabled(device)),
        earlier_dtype_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  /// Weights that were cast are forgotten: the next update changes them, or they belong to another graph.
  ~AutocastState() {
    at::autocast::set_autocast_enabled(device_, was_enabled_);
    at::autocast::set_autocast_dtype(device_, earlier_dtype_);
    if (!was_enabled_) at::autocast::clear_cache();
  }
  AutocastState(const AutocastState&) = delete;
  AutocastState& operator=(const AutocastState&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType earlier_dtype_;
};

}  // namespace dalle2
