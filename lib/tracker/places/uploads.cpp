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
  end();
}

Uploads::Lane* Uploads::lane_of(const FileToSend& file) const {
  for (const auto& lane : lanes_) {
    if (lane->destination->takes(file)) return lane.get();
  }
  return nullptr;
}

void Uploads::serve(std::shared_ptr<Destination> destination) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(std::make_unique<Lane>());
  lanes_.back()->destination = std::move(destination);
}

void Uploads::begin() {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (!lane->thread.joinable()) lane->thread = std::thread([this, &lane = *lane] { work(lane); });
  }
}

void Uploads::add(const FileToSend& file) {
  const std::lock_guard lock(mutex_);
  Lane* const lane = lane_of(file);
  D2_CHECK(lane != nullptr, "nobody sends to {}", file.to);
  lane->retry_at = {};  // at once, what has failed too
  for (const OutboxEntry& removed : outbox_.add(file)) {
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
  std::erase_if(entries, [&](const OutboxEntry& entry) { return lane_of(entry) != nullptr; });
  return entries;
}

/// What was begun, else the newest, of those that were not tried. A target that got a file since the
/// start comes after the others, so that a busy one holds up none.
std::optional<OutboxEntry> Uploads::next(const Lane& lane) const {
  std::optional<OutboxEntry> best;
  bool best_is_fresh = false;
  std::vector<OutboxEntry> begun;
  for (const OutboxEntry& entry : outbox_.waiting()) {
    if (lane_of(entry) != &lane) continue;
    const bool was_tried = lane.failed.contains(entry.number);
    if (!entry.notes.empty()) {
      if (!was_tried) return entry;
      begun.push_back(entry);
    }
    const bool is_behind = std::any_of(begun.begin(), begun.end(), [&](const auto& older) {
      return older.is_for_same_target(entry);
    });
    const bool is_fresh = !lane.sent_targets.contains(entry.target);
    if (was_tried || is_behind || (best && best_is_fresh && !is_fresh)) continue;
    best = entry;
    best_is_fresh = is_fresh;
  }
  return best;
}

void Uploads::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!cancelled_) {
    lock.unlock();
    abandon_dropped();
    lock.lock();
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
    const bool sent = send(*lane.destination, *entry);
    lock.lock();
    last_failed_ = !sent;
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
bool Uploads::send(Destination& to, const OutboxEntry& entry) {
  UploadNotes notes = {.load = [&] { return outbox_.notes(entry.number); },
                       .keep =
                           [&](const std::string& text) {
                             outbox_.keep_notes(entry.number, text, to.stores_notes());
                           }};
  Outbox::Outcome outcome = Outbox::Outcome::kSent;
  try {
    to.send(entry, notes, [this] { return cancelled_.load(); });
    log_info("track", "Saved {} to {}", entry.kind, to.place_of(entry.target));
  } catch (const std::exception& error) {
    const auto* const network = dynamic_cast<const NetworkError*>(&error);
    const bool passes = cancelled_ || (network != nullptr && may_pass(*network));
    outcome = passes ? Outbox::Outcome::kFailed : Outbox::Outcome::kRefused;
    if (!cancelled_) {
      report(fmt::format("Error saving {} to {}: {}\n  It waits in {}.",
                         entry.kind,
                         to.place_of(entry.target),
                         error.what(),
                         std::filesystem::path(entry.path).parent_path().string()));
    }
  }
  try {
    outbox_.end(entry, outcome);
  } catch (const std::exception& error) {
    report(fmt::format("Error clearing the outbox: {}", error.what()));
    return false;
  }
  return outcome == Outbox::Outcome::kSent;
}

/// Parts that a service keeps cost money.
void Uploads::abandon_dropped() {
  for (const OutboxEntry& entry : outbox_.take_dropped()) {
    std::unique_lock lock(mutex_);
    const Lane* const lane = lane_of(entry);
    lock.unlock();
    if (lane != nullptr) lane->destination->abandon(entry, entry.notes);
  }
}

void Uploads::report(const std::string& error) {
  const std::lock_guard lock(mutex_);
  errors_.push_back(error);
}

void Uploads::begin_end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const auto& lane : lanes_) lane->failed.clear();
  wake_.notify_all();
}

bool Uploads::is_done() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->done; });
}

bool Uploads::last_answer_was_fault() const {
  const std::lock_guard lock(mutex_);
  return last_failed_;
}

void Uploads::end() {
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

size_t Uploads::finish(double seconds) {
  const Clock::time_point begin = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  bool stopped = stop_requested() != 0;
  double most = stopped ? std::min(seconds, kSecondsAfterStop) : seconds;
  if (const auto waiting = outbox_.waiting(); !waiting.empty() && !lanes_.empty()) {
    log_info("track",
             "Sending {} ({}) that {}{}",
             counted(static_cast<int64_t>(waiting.size()), "file"),
             human_bytes(bytes_of(waiting)),
             waiting.size() == 1 ? "waits" : "wait",
             std::isfinite(most) ? fmt::format(", for {:g} s at most", most) : "");
  }
  begin_end();
  while (!is_done() && passed() < most) {
    std::this_thread::sleep_for(kGlance);
    if (stopped || stop_requested() == 0) continue;
    stopped = true;
    most = std::min(most, passed() + kSecondsAfterStop);
    log_info("track", "{}: sending ends in {:g} s", signal_name(stop_requested()), most - passed());
  }
  end();
  return waiting_count();
}

}  // namespace dalle2
