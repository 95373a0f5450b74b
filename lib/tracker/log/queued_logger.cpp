// SPDX-License-Identifier: MIT
#include "tracker/log/queued_logger.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

constexpr auto kTickEvery = std::chrono::seconds(1);
constexpr size_t kBytesOfAnItem = 200;  ///< of its bookkeeping, about

size_t bytes_of(const LogRecord& record) {
  size_t bytes = 0;
  for (const auto& [name, value] : record) {
    bytes += name.size() + sizeof(value);
    if (const auto* text = std::get_if<std::string>(&value)) bytes += text->size();
  }
  return bytes;
}

size_t bytes_of(const std::vector<StoredImage>& images) {
  size_t bytes = 0;
  for (const StoredImage& image : images) bytes += image.png->size() + image.caption.size();
  return bytes;
}

}  // namespace

QueuedLogger::QueuedLogger(std::unique_ptr<Logger> logger, QueueLimits limits)
    : Logger(logger->auto_resume()), logger_(std::move(logger)), limits_(limits) {}

QueuedLogger::~QueuedLogger() {
  set_deadline(std::chrono::steady_clock::now());
  stop();
}

void QueuedLogger::init(const RunFacts& facts) {
  logger_->init(facts);
  thread_ = std::thread([this] { work(); });
}

void QueuedLogger::log(const LogRecord& record, const LogMoment& moment) {
  push(bytes_of(record), [record, moment](Logger& logger) { logger.log(record, moment); });
}

void QueuedLogger::log_images(const std::vector<StoredImage>& images,
                              const std::string& section,
                              const LogMoment& moment) {
  push(bytes_of(images),
       [images, section, moment](Logger& logger) { logger.log_images(images, section, moment); });
}

void QueuedLogger::log_error(const std::string& message, const LogMoment& moment) {
  push(message.size(), [message, moment](Logger& logger) { logger.log_error(message, moment); });
}

void QueuedLogger::log_file(const std::string& name, const std::string& content) {
  push(content.size(), [name, content](Logger& logger) { logger.log_file(name, content); });
}

void QueuedLogger::push(size_t bytes, std::function<void(Logger& logger)> work) {
  bytes += kBytesOfAnItem;
  const std::lock_guard lock(mutex_);
  if (items_.size() >= limits_.most_items || bytes_ + bytes > limits_.most_bytes) {
    if (lost_++ == failures_) {
      log_warning(
          "track",
          "{}: {} wait to be sent, and there is no room for more: until there is, records of this "
          "logger are lost; the run continues",
          logger_->type_name(),
          counted(static_cast<int64_t>(items_.size()), "record"));
    }
    return;
  }
  items_.push_back({std::move(work), bytes});
  bytes_ += bytes;
  changed_.notify_all();
}

void QueuedLogger::set_deadline(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    deadline_ = deadline;
  }
  logger_->set_deadline(deadline);
}

void QueuedLogger::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!changed_.wait_for(lock, kTickEvery, [this] { return ends_ || !items_.empty(); })) {
      lock.unlock();
      do_one({[](Logger& logger) { logger.tick(); }});
      lock.lock();
      continue;
    }
    if (items_.empty()) break;
    if (is_too_late()) {
      // The last one tells the logger how the run ended, which costs next to nothing.
      lost_ += static_cast<int64_t>(items_.size()) - 1;
      items_.erase(items_.begin(), items_.end() - 1);
    }
    const Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    do_one(item);
    lock.lock();
    bytes_ -= std::min(bytes_, item.bytes);
  }
  ended_ = true;
  changed_.notify_all();
}

bool QueuedLogger::is_too_late() const {
  if (deadline_ == Deadline::max()) return false;
  const std::chrono::duration<double> late = std::chrono::steady_clock::now() - deadline_;
  return late.count() >= limits_.grace_seconds;
}

void QueuedLogger::do_one(const Item& item) {
  try {
    item.work(*logger_);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    ++lost_;
    if (failures_++ > 0) return;
    log_warning(
        "track", "{}: a record is lost; the run continues: {}", logger_->type_name(), error.what());
  }
}

void QueuedLogger::finish(const RunEnd& end) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    items_.push_back({[end](Logger& logger) { logger.finish(end); }, 0});
    ends_ = true;
    changed_.notify_all();
    const std::chrono::duration<double> patience(limits_.notice_seconds);
    if (!changed_.wait_for(lock, patience, [this] { return ended_; })) {
      const std::chrono::duration<double> left = deadline_ - std::chrono::steady_clock::now();
      log_info("track",
               "{}: sending what is left, {:.0f} s at most",
               logger_->type_name(),
               std::max(left.count(), 0.0));
    }
  }
  stop();
  if (lost_ > 0) {
    log_warning("track", "{}: {} lost", logger_->type_name(), counted(lost_, "record"));
  }
}

void QueuedLogger::stop() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace dalle2
