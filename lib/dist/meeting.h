// SPDX-License-Identifier: MIT
// How the ranks of one start find each other in a store that may hold the keys of starts before it:
// torchrun keeps its store over restarts, and its agents do not count these alike.
#pragma once

#include <chrono>
#include <string>

#include "dist/process_group_backend.h"
#include "dist/world.h"

namespace dalle2 {

/// Set in the store by the launcher of all ranks once one of them was stopped: if they have not met by
/// then, they never will.
inline constexpr const char* kStoppedKey = "stopped";

struct MeetingTimes {
  std::chrono::milliseconds tell{30'000};    ///< who is missing is reported so often
  std::chrono::milliseconds limit{300'000};  ///< and waited for no longer
};

/// Waits until something listens where the ranks meet, which begins with rank 0 or before it.
/// @throws NetworkError naming the address and what is wrong with it; StoppedError after a signal
void wait_for_store(const World& world, const MeetingTimes& times = {});

/// To be called by all ranks, once a start.
/// @return the name of this start: the same on all ranks, and no other start has had it
/// @throws NetworkError naming the ranks that did not come; StoppedError after a signal,
/// and if the launcher says that another rank was stopped
std::string meet(const World& world, RankStore& store, const MeetingTimes& times = {});

}  // namespace dalle2
