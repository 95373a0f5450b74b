// SPDX-License-Identifier: MIT
// A logger that may be slow, behind a queue: whoever logs hands over and continues.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tracker/log/logger.h"

namespace dalle2 {

/// How much may wait. A record that finds the queue full is lost, and counted.
struct QueueLimits {
  size_t most_items = 100'000;
  size_t most_bytes = size_t{256} << 20;  ///< of pictures, texts and names
  /// After the deadline a logger that was reported of it may still note what is left on a disk.
  double grace_seconds = 3;
  double notice_seconds = 1;  ///< of waiting at the end, after which a line says so
};

/// check() and init() are the caller's; all else is done by a thread, in order. An error there costs
/// a record of this logger: the first is a warning, the number is reported at the end.
class QueuedLogger : public Logger {
 public:
  explicit QueuedLogger(std::unique_ptr<Logger> logger, QueueLimits limits = {});
  /// Ends without waiting for what is in the queue, if finish() did not come.
  ~QueuedLogger() override;

  std::string type_name() const override { return logger_->type_name(); }
  void check() override { logger_->check(); }
  void init(const RunFacts& facts) override;
  void log(const LogRecord& record, const LogMoment& moment) override;
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment) override;
  void log_error(const std::string& message, const LogMoment& moment) override;
  void log_file(const std::string& name, const std::string& content) override;
  void set_deadline(Deadline deadline) override;
  /// Waits until the queue is empty and the logger has ended, or until the deadline and its grace;
  /// what is left then is lost. A line says how long this may last.
  void finish(const RunEnd& end) override;

  bool prints_records() const override { return logger_->prints_records(); }
  std::map<std::string, std::string> resume_data() const override { return logger_->resume_data(); }
  bool set_attribute(const std::string& name, const std::string& value) override {
    return logger_->set_attribute(name, value);
  }

 private:
  struct Item {
    std::function<void(Logger& logger)> work;
    size_t bytes = 0;
  };

  void push(size_t bytes, std::function<void(Logger& logger)> work);
  void work();
  void do_one(const Item& item);
  bool is_too_late() const;
  void stop();

  const std::unique_ptr<Logger> logger_;
  const QueueLimits limits_;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Item> items_;
  size_t bytes_ = 0;      // of items_
  int64_t lost_ = 0;      // to a full queue or a failure
  int64_t failures_ = 0;  // of them, by a failure
  Deadline deadline_ = Deadline::max();
  bool ends_ = false;   // no more items come
  bool ended_ = false;  // the thread has nothing left to do
  std::thread thread_;
};

}  // namespace dalle2
