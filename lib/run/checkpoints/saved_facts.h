// SPDX-License-Identifier: MIT
// What the files of a run say of themselves: which run saved them, and where it stood.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/state_dict.h"
#include "tracker/run_folder/resume_order.h"

namespace dalle2 {

/// Of a checkpoint or a model file, without its tensors. None if it cannot be read.
std::optional<SavedFacts> read_saved_facts(const std::string& path);

/// The entries of `dalle2_train` that say it; samples_seen is at the root.
void add_facts(const SavedFacts& facts, Dict& own);
/// @throws DataError for an entry of another type
SavedFacts facts_of(const Cursor& root);

}  // namespace dalle2
