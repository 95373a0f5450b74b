// SPDX-License-Identifier: MIT
// No rank waits for another without end: each tells the others once in a while where it is, and
// when one is stuck, or gone, the rest say which and where, and the process ends.
#pragma once

#include <atomic>
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
#include <vector>

#include "dist/process_group_backend.h"
#include "dist/world.h"

namespace dalle2 {

/// Where a rank is, as the others see it.
struct RankPlace {
  int64_t beats = 0;     ///< grows while the process lives
  int64_t sequence = 0;  ///< collectives begun
  int64_t step = 0;
  std::string what = {};     ///< the collective it waits in, or waited in last
  bool waits = false;        ///< in it still
  double seconds = 0;        ///< since it began to wait, or since it left the last collective
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

class RankWatch {
 public:
  /// @param on_hang given the report; called from the watch's own thread. It ends the process.
  RankWatch(const World& world,
            std::unique_ptr<RankStore> store,
            std::chrono::seconds hang_timeout,
            std::function<void(const std::string& report)> on_hang);
  ~RankWatch();

  /// A collective begins. @return its number. It lasts until `work` is done, or until end().
  int64_t begin(const std::string& what, std::shared_ptr<BackendWork> work);
  void end(int64_t number);
  void set_step(int64_t step);
  /// Empty: no more. @return what it was before
  std::string set_busy(const std::string& what);
  void tell_failure(const std::string& message) noexcept;
  /// After a collective failed, whose peer may be gone: waits some seconds to hear who it is.
  std::string explain(const std::string& error);

 private:
  struct Pending {
    int64_t number;
    std::string what;
    std::shared_ptr<BackendWork> work;
    std::chrono::steady_clock::time_point since;
  };

  void run();
  void look(RankStore& store);
  RankPlace own_place();
  void publish(RankStore& store);
  std::string report();

  World world_;
  std::unique_ptr<RankStore> store_;
  double hang_seconds_;
  std::function<void(const std::string&)> on_hang_;

  std::mutex mutex_;  // all below
  std::condition_variable wake_;
  std::deque<Pending> pending_;
  RankPlace own_;
  std::chrono::steady_clock::time_point last_end_ = std::chrono::steady_clock::now();
  std::vector<std::optional<RankPlace>> places_;
  std::vector<std::chrono::steady_clock::time_point> last_beat_;
  std::string store_error_;
  bool explaining_ = false, closing_ = false;

  std::thread thread_;  // the last: it uses the others
};

}  // namespace dalle2
