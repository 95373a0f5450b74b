// SPDX-License-Identifier: MIT
// The board in the store on which each rank writes where it is, and reads where the others are.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/process_group_backend.h"
#include "dist/rank_place.h"

namespace dalle2 {

/// A thread of its own talks to the store: a call of the store has no time limit, and on a network
/// that is cut it may never return. Nobody else waits for it without a limit.
class RankBoard {
 public:
  struct Contents {
    std::vector<std::optional<RankPlace>> places;  ///< one a rank; none: never heard of
    std::vector<double> silent_seconds;            ///< one a rank, since its beats last grew
    std::string store_error;                       ///< of the last attempt; empty: it worked
    double seconds_in_call = 0;                    ///< of the store, under way; 0: in none
  };

  RankBoard(int rank, int size, std::unique_ptr<RankStore> store);
  /// Leaves the thread to itself if the store still holds it after some seconds.
  ~RankBoard();
  RankBoard(const RankBoard&) = delete;
  RankBoard& operator=(const RankBoard&) = delete;

  /// Writes the own place and then reads all. Returns at once; of several, the last counts.
  void post(const RankPlace& own);
  /// @return false if the last post is not out after `limit`
  bool wait_until_posted(std::chrono::duration<double> limit);
  Contents read() const;

 private:
  struct Shared;
  static void run(Shared& shared);

  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive the board
  std::thread thread_;
};

}  // namespace dalle2
