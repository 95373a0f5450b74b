// SPDX-License-Identifier: MIT
// Not a test: check_with_reference.py runs it to get checkpoints of ours, and the losses that follow
// them.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <initializer_list>

#include "checkpoint/pickle/pth.h"
#include "trainer/state/train_state.h"

namespace dalle2::test {

/// Plays the recorded runs with these names. Into DALLE2_CHECK_DIR go a checkpoint of each from where
/// the recording has one, and all its losses.
template <class RecordedRun>
void write_runs_for_reference(std::initializer_list<const char*> names, const Extras& extras) {
  const char* folder = std::getenv("DALLE2_CHECK_DIR");
  REQUIRE(folder != nullptr);
  for (const char* name : names) {
    const RecordedRun recorded(name);
    const auto trainer = recorded.trainer();
    nlohmann::json losses;
    for (size_t i = 0; i < recorded.num_events(); ++i) {
      losses.push_back(recorded.play(*trainer, i));
      if (i == recorded.save_behind())
        write_pth(fmt::format("{}/{}.pth", folder, name), trainer->state(extras));
    }
    std::ofstream(fmt::format("{}/{}.json", folder, name)) << losses.dump();
  }
}

}  // namespace dalle2::test
