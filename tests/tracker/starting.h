// SPDX-License-Identifier: MIT
// A tracker as a run starts it.
#pragma once

#include "tracker/tracker.h"

namespace dalle2::test {

/// Names that a run offers to the targets of its savers.
inline const FormatFields& placeholders() {
  static const FormatFields fields = {{"epoch", int64_t{0}},
                                      {"sample", int64_t{0}},
                                      {"next_task", std::string("train")},
                                      {"validation_losses", std::vector<double>{0.5}},
                                      {"samples_seen", int64_t{0}}};
  return fields;
}

/// What a run does with a tracker that was made: the first candidate is taken up if there is one.
inline void begin(Tracker& tracker) {
  tracker.init();
  if (tracker.can_recall()) {
    const std::vector<std::string> candidates = tracker.recall_candidates();
    if (!candidates.empty()) return tracker.go_on(candidates.front());
  }
  tracker.begin_anew();
}

inline Tracker start(const TrackerConfig& config, bool dummy = false) {
  Tracker tracker(config, placeholders(), dummy);
  begin(tracker);
  return tracker;
}

}  // namespace dalle2::test
