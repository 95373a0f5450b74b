// SPDX-License-Identifier: MIT
// Whether an update was made or skipped, as the device reports it once it has got that far.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>

namespace dalle2 {

/// Updates of a part that were skipped, because their loss or gradient was not finite.
struct SkippedUpdates {
  int64_t total = 0;
  int64_t in_a_row = 0;  ///< since the last one that was made

  bool operator==(const SkippedUpdates&) const = default;
};

/// Usage: post() what the device will know, continue, and take() it when it matters.
class UpdateOutcome {
 public:
  /// Hands on the flag of an update. Does not wait: from a GPU it goes to page-locked memory.
  /// @param found_inf [] float32: 1 if the update is skipped
  void post(const at::Tensor& found_inf);
  /// Whether an outcome has been posted and not taken.
  bool pending() const { return pending_; }
  /// Waits until the device has got as far as post(). @return true if the update was made
  bool take();

 private:
  at::Tensor flag_;  // [] float32 in main memory
  std::optional<c10::Event> passed_;
  bool pending_ = false;
};

}  // namespace dalle2
