// SPDX-License-Identifier: MIT
// No rank waits for another without end: each tells the others once in a while where it is, and
// when one is stuck, or gone, the rest say which and where, and the process ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "dist/process_group_backend.h"
#include "dist/rank_board.h"
#include "dist/rank_place.h"
#include "dist/world.h"

namespace dalle2 {

class RankWatch {
 public:
  /// @param on_hang given the report; called from the watch's own thread. It ends the process.
  RankWatch(const World& world,
            std::unique_ptr<RankStore> store,
            std::chrono::seconds hang_timeout,
            std::function<void(const std::string& report)> on_hang);
  ~RankWatch();

  /// Waits, some seconds at most, until all ranks have been heard of: a loss in the next moment is
  /// then told with the place where the rank was.
  void meet_all();
  /// A collective begins. @return its number. It lasts until the work of launched() is done, or
  /// until end().
  int64_t begin(const std::string& what);
  void launched(int64_t number, std::shared_ptr<BackendWork> work);
  void end(int64_t number);
  void set_step(int64_t step);
  /// Empty: no more. @return what it was before
  std::string set_busy(const std::string& what);
  /// What it is busy with goes on: the time that others wait for it begins anew. So does each sign
  /// of life (base/sign_of_life.h) of a rank that is busy.
  void still_busy();
  /// Waits until the others can read it, some seconds at most.
  void tell_failure(const std::string& message) noexcept;
  /// Whether a collective is under way.
  bool is_waiting();
  /// After the collective of that number failed, whose peer may be gone: waits some seconds to hear
  /// who it is.
  std::string explain(const std::string& error, int64_t number, const std::string& what);

 private:
  struct Pending {
    int64_t number;
    std::string what;
    std::shared_ptr<BackendWork> work;
    std::chrono::steady_clock::time_point since;
  };

  void run();
  void drop_done();
  RankPlace own_place();
  void post_own_place();
  std::string report();

  World world_;
  std::chrono::milliseconds beat_;  // between two posts
  double hang_seconds_;
  std::function<void(const std::string&)> on_hang_;
  RankBoard board_;

  std::mutex mutex_;  // all below
  std::condition_variable wake_;
  std::deque<Pending> pending_;
  RankPlace own_;
  std::chrono::steady_clock::time_point last_end_ = std::chrono::steady_clock::now();
  uint64_t signs_ = 0;  // signs of life that were seen
  bool explaining_ = false, closing_ = false;

  std::thread thread_;  // the last: it uses the others
};

}  // namespace dalle2
