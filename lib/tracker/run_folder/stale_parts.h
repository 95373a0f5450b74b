// SPDX-License-Identifier: MIT
// What is left of files that an interrupted run was writing (AtomicFile's `NAME.part`).
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// Removes from a run's data_path the parts of files that a run writes there: of data_path itself,
/// images/, snapshots/ and averages/, only under the names that a run gives. Other files, folders
/// and links stay, whatever they end in; what cannot be read or removed is skipped.
/// @return their paths
std::vector<std::string> sweep_stale_parts(const std::string& data_path);

/// Removes what killed starts left beside a lock that this process holds.
void sweep_parts_of_lock(const std::string& lock);

/// Removes the parts of files that a run wrote elsewhere, where a folder may be anybody's.
/// @param paths that the run has written to (OwnFiles), without `.part`
/// @return those removed
std::vector<std::string> sweep_parts_of(const std::vector<std::string>& paths);

}  // namespace dalle2
