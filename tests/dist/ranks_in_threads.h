// SPDX-License-Identifier: MIT
// Several ranks in one process, a thread each, over Gloo.
#pragma once

#include <cstdlib>
#include <exception>
#include <thread>

#include "dist/process_group.h"
#include "dist/process_group_backend.h"

namespace dalle2::test {

/// Runs `body` as each of `size` ranks. @param options of a rank's group; null: the defaults
/// @throws what the first of them threw
inline void as_ranks(int size,
                     const std::function<void(ProcessGroup&)>& body,
                     const std::function<GroupOptions(int rank)>& options = nullptr) {
  // c10d's flight recorder is one for the process, and looks into a map without its lock: two ranks
  // that are threads can break it. Ranks of a run are processes.
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  const StoreServer store;
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          World world;
          world.rank = world.local_rank = rank;
          world.size = world.local_size = size;
          world.launcher = Launcher::kOurs;
          world.store_port = store.port();
          world.hosts_store = false;
          ProcessGroup group(world, options ? options(rank) : GroupOptions());
          body(group);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace dalle2::test
