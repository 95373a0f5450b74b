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
#include <optional>
#include <string>
#include <thread>

#include "dist/process_group_backend.h"
#include "dist/rank_board.h"
#include "dist/world.h"

namespace dalle2 {

/// The collectives of a rank that are under way. Threads may call it together. Only poll() asks the works, and never under a lock: the question may
/// wait for the driver of a GPU.
class PendingWorks {
 public:
  using Clock = std::chrono::steady_clock;

  /// A collective that ended with an error.
  struct Failed {
    int64_t number = 0;
    std::string what, reason;
    Clock::time_point since;
  };

  /// @param limit see RankPlace @return its number
  int64_t begin(const std::string& what, std::chrono::seconds limit);
  void launched(int64_t number, std::shared_ptr<BackendWork> work);
  void end(int64_t number);
  /// The time since a collective ended starts over.
  void restart_clock();
  /// Lets the works go that are done, in their order, with the tensors that they hold. Returns at once
  /// while another thread is in it.
  void poll();
  /// The place of the rank. @param rest what the works do not know of it
  RankPlace place(RankPlace rest = {}) const;
  /// The first that poll() found failed.
  std::optional<Failed> failed() const;

 private:
  struct Pending {
    int64_t number;
    std::string what;
    std::chrono::seconds limit;
    std::shared_ptr<BackendWork> work;
    Clock::time_point since;
  };

  std::mutex polling_;
  mutable std::mutex mutex_;  // all below
  std::deque<Pending> pending_;
  int64_t last_sequence_ = 0;  // of the collective begun last
  std::string last_what_ = "start";
  std::optional<Failed> failed_;
  Clock::time_point last_end_ = Clock::now();
};

class RankWatch {
 public:
  /// Given the report; called from the watch's own thread. It ends the process.
  using OnHang = std::function<void(const std::string& report)>;

  RankWatch(const World& world,
            std::unique_ptr<RankStore> store,
            std::chrono::seconds hang_timeout,
            OnHang on_hang);
  ~RankWatch();

  /// Waits, some seconds at most, until all ranks have been heard of: a loss in the next moment is
  /// then told with the place where the rank was.
  void meet_all();
  /// Makes a GPU the current one of the thread that asks it whether collectives are done: that would
  /// open the first GPU besides.
  void set_device(const at::Device& device);
  /// A collective begins. @return its number. It lasts until the work of launched() is done, or
  /// until end().
  /// @param limit what it may take where all ranks are in it and nothing moves, if it is more than usual
  int64_t begin(const std::string& what, std::chrono::seconds limit = {});
  void launched(int64_t number, std::shared_ptr<BackendWork> work);
  void end(int64_t number) { works_.end(number); }
  void set_step(int64_t step);
  /// Empty: no more. @return what it was before
  std::string set_busy(const std::string& what);
  /// What it is busy with continues: the time that others wait for it starts over. So does each sign
  /// of life (sign_of_life()) of a rank that is busy.
  void still_busy() { works_.restart_clock(); }
  /// Waits until the others can read it, some seconds at most.
  void tell_failure(const std::string& message) noexcept;
  /// Whether a collective is under way.
  bool is_waiting();
  /// After the collective of that number failed, whose peer may be gone: waits some seconds to hear
  /// who it is.
  std::string explain(const std::string& error, int64_t number, const std::string& what);

 private:
  using Failed = PendingWorks::Failed;

  void beat();
  RankPlace own_place();
  void post_own_place();
  std::string hang_report();
  struct Report {
    std::string text;
    bool is_own = false;  ///< no other rank has to do with it, as far as is known
  };
  std::optional<Report> report_of(const Failed& failed);
  std::string culprits_of(int64_t number, const std::string& what);
  std::string failure_text(const std::string& what, const std::string& causes);

  World world_;
  std::chrono::milliseconds beat_;  // between two posts
  double hang_seconds_;
  OnHang on_hang_;
  RankBoard board_;
  struct Poller;
  const std::shared_ptr<Poller> poller_;  // shared with its thread, which may outlive the watch
  PendingWorks& works_;

  std::mutex mutex_;  // all below
  std::condition_variable wake_;
  RankPlace own_;       // but for what works_ knows
  uint64_t signs_ = 0;  // signs of life that were seen
  bool explaining_ = false, closing_ = false;

  std::thread thread_;  // the last: it uses the others
};

}  // namespace dalle2
