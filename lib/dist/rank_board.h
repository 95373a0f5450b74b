// SPDX-License-Identifier: MIT
// Where each rank is, the board in the store on which it says so, and what that tells about a rank that
// the others wait for.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dist/process_group_backend.h"

namespace dalle2 {

/// Where a rank is, as the others see it.
struct RankPlace {
  int64_t beats = 0;     ///< grows while the process lives
  int64_t sequence = 0;  ///< collectives begun
  int64_t step = 0;
  std::string what = {};     ///< the collective it waits in, or waited in last
  bool waits = false;        ///< in it still
  double seconds = 0;        ///< since it began to wait or a collective ended, the later of both
  double limit = 0;          ///< seconds that this collective may take if all ranks are in it
  std::string busy = {};     ///< what the others may wait for; empty: nothing
  std::string failure = {};  ///< why it has ended; empty: it has not
  bool ended = false;        ///< it is done and needs nobody any more

  std::string to_json() const;
  static RankPlace from_json(const std::string& text);
};

/// What is wrong with the ranks that a rank waits for. Pure, for tests.
/// @param own rank @param places one a rank, none: never heard of
/// @param silent_seconds one a rank, since its beats last grew
/// @return the report for people, none while there is nothing to report
std::optional<std::string> find_hang(int own,
                                     const std::vector<std::optional<RankPlace>>& places,
                                     const std::vector<double>& silent_seconds,
                                     double hang_timeout_seconds);

/// Collectives of the same number, and they are not the same.
bool is_another_operation(const RankPlace& one, const RankPlace& other);

/// "in "loss" (number 3, step 5) for 61 s", as reports have it.
std::string place_text(const RankPlace& place);

/// The reason in an error of c10d, in one line: its first, and what NCCL says under "Last error:".
std::string reason_of(const std::string& error);

/// Why a rank is gone; none if it is there, or done.
std::optional<std::string> loss_of(const std::optional<RankPlace>& other,
                                   double silent_seconds,
                                   double most_silent_seconds);

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
