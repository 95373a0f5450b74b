// SPDX-License-Identifier: MIT
#include "tracker/places/uploads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"

namespace dalle2 {
namespace {

constexpr double kFirstPause = 30, kLongestPause = 600;  // seconds
constexpr auto kGlance = std::chrono::milliseconds(100);

uint64_t bytes_of(const std::vector<OutboxEntry>& entries) {
  uint64_t bytes = 0;
  for (const OutboxEntry& entry : entries) bytes += entry.bytes;
  return bytes;
}

}  // namespace

Uploads::Uploads(const std::string& folder, Outbox::FreeBytes free_bytes)
    : outbox_(folder, std::move(free_bytes)) {}

Uploads::~Uploads() {
  end_threads();
}

void Uploads::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  cancelled_ = true;
  wake_.notify_all();
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

Uploads::Lane* Uploads::lane_of(const std::string& to) const {
  for (const auto& lane : lanes_) {
    if (lane->recipient.destination->name() == to) return lane.get();
  }
  return nullptr;
}

void Uploads::serve(Recipient recipient, const std::vector<std::string>& templates) {
  const std::lock_guard lock(mutex_);
  Lane* lane = lane_of(recipient.destination->name());
  if (lane == nullptr) {
    lanes_.push_back(std::make_unique<Lane>());
    lane = lanes_.back().get();
    lane->recipient = std::move(recipient);
  }
  for (const std::string& target : templates) lane->recipient.destination->know_template(target);
}

void Uploads::begin() {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (!lane->thread.joinable()) lane->thread = std::thread([this, &lane = *lane] { work(lane); });
  }
}

void Uploads::add(const std::string& to, const FileToSend& file) {
  OutboxEntry entry;
  entry.to = to;
  entry.kind = file.kind;
  entry.only_if_absent = file.only_if_absent;
  const std::lock_guard lock(mutex_);
  Lane* const lane = lane_of(to);
  D2_CHECK(lane != nullptr, "nobody sends to {}", to);
  entry.target = lane->recipient.destination->shown_target(file.target);
  entry.saver = lane->recipient.saver_json(entry.target);
  lane->retry_at = {};  // at once, what has failed too
  for (const OutboxEntry& removed : outbox_.add(entry, file.path)) {
    errors_.push_back(fmt::format(
        "{} {} for {} of {} was not sent and is removed: the disk of the outbox is nearly full",
        removed.kind,
        removed.target,
        removed.to,
        human_bytes(removed.bytes)));
  }
  wake_.notify_all();
}

std::vector<std::string> Uploads::take_errors() {
  const std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

std::vector<OutboxEntry> Uploads::unserved() const {
  std::vector<OutboxEntry> entries = outbox_.waiting();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries, [&](const OutboxEntry& entry) { return lane_of(entry.to) != nullptr; });
  return entries;
}

/// The newest that was not tried; a target that got a file since the start comes after the others, so
/// that a busy one holds up none.
std::optional<OutboxEntry> Uploads::next(const Lane& lane) const {
  std::optional<OutboxEntry> best;
  bool best_is_fresh = false;
  for (const OutboxEntry& entry : outbox_.waiting()) {
    if (entry.to != lane.recipient.destination->name()) continue;
    if (lane.failed.contains(entry.number)) continue;
    const bool is_fresh = !lane.sent_targets.contains(entry.target);
    if (best && best_is_fresh && !is_fresh) continue;
    best = entry;
    best_is_fresh = is_fresh;
  }
  return best;
}

void Uploads::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!cancelled_) {
    if (!ending_ && Clock::now() >= lane.retry_at) lane.failed.clear();
    const std::optional<OutboxEntry> entry = next(lane);
    if (!entry) {
      if (ending_) break;
      lane.sent_targets.clear();
      wake_.wait_for(lock, kGlance * 10);
      continue;
    }
    outbox_.begin(*entry);
    lock.unlock();
    const bool sent = send(lane, *entry);
    lock.lock();
    lane.sent_targets.insert(entry->target);
    if (sent) {
      lane.pause_seconds = 0;
      continue;
    }
    if (lane.failed.empty()) {
      lane.pause_seconds = std::clamp(2 * lane.pause_seconds, kFirstPause, kLongestPause);
    }
    lane.failed.insert(entry->number);
    lane.retry_at =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(lane.pause_seconds * 1000));
  }
  lane.done = true;
  wake_.notify_all();
}

/// @return whether the entry is dealt with
bool Uploads::send(Lane& lane, const OutboxEntry& entry) {
  Destination& to = *lane.recipient.destination;
  bool sent = false;
  try {
    to.send({.path = entry.path,
             .target = to.full_target(entry.target),
             .kind = entry.kind,
             .only_if_absent = entry.only_if_absent},
            [this] { return cancelled_.load(); });
    sent = true;
    log_info("track", "Saved {} to {}", entry.kind, to.place_of(entry.target));
  } catch (const std::exception& error) {
    if (!cancelled_) {
      report(fmt::format("Error saving {} to {}: {}\n  It waits in {}.",
                         entry.kind,
                         to.place_of(entry.target),
                         error.what(),
                         std::filesystem::path(entry.path).parent_path().string()));
    }
  }
  try {
    outbox_.end(entry, sent);
  } catch (const std::exception& error) {
    report(fmt::format("Error clearing the outbox: {}", error.what()));
    return false;
  }
  return sent;
}

void Uploads::report(const std::string& error) {
  const std::lock_guard lock(mutex_);
  errors_.push_back(error);
}

size_t Uploads::finish(double seconds) {
  const Clock::time_point begin = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  bool stopped = stop_requested() != 0;
  double most = stopped ? std::min(seconds, kSecondsAfterStop) : seconds;
  std::unique_lock lock(mutex_);
  if (const auto waiting = outbox_.waiting(); !waiting.empty() && !lanes_.empty()) {
    log_info("track",
             "Sending {} ({}) that {}{}",
             counted(static_cast<int64_t>(waiting.size()), "file"),
             human_bytes(bytes_of(waiting)),
             waiting.size() == 1 ? "waits" : "wait",
             std::isfinite(most) ? fmt::format(", for {:g} s at most", most) : "");
  }
  ending_ = true;
  for (const auto& lane : lanes_) lane->failed.clear();  // each is tried again
  wake_.notify_all();
  const auto all_done = [&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->done; });
  };
  while (!all_done() && passed() < most) {
    wake_.wait_for(lock, kGlance);
    if (stopped || stop_requested() == 0) continue;
    stopped = true;
    most = std::min(most, passed() + kSecondsAfterStop);
    log_info("track", "{}: sending ends in {:g} s", signal_name(stop_requested()), most - passed());
  }
  lock.unlock();
  end_threads();
  return outbox_.waiting().size();
}

}  // namespace dalle2
