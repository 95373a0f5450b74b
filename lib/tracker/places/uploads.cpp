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
#include "base/timer.h"

namespace dalle2 {
namespace {

constexpr double kFirstPause = 30, kLongestPause = 600;  // seconds
constexpr auto kGlance = std::chrono::seconds(1);
constexpr double kSecondsAfterTrouble = 10;  // at the end

}  // namespace

Uploads::Uploads(const std::string& folder, Outbox::FreeBytes free_bytes)
    : outbox_(folder, std::move(free_bytes)) {}

Uploads::~Uploads() {
  end();
}

Uploads::Lane* Uploads::lane_of(const FileToSend& file) const {
  for (const auto& lane : lanes_) {
    if (lane->destination->name() == file.to) return lane.get();
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

std::vector<OutboxEntry> Uploads::waiting() const {
  const std::lock_guard lock(mutex_);
  return outbox_.waiting();
}

std::vector<OutboxEntry> Uploads::unserved() const {
  const std::lock_guard lock(mutex_);
  std::vector<OutboxEntry> entries = outbox_.waiting();
  std::erase_if(entries, [&](const OutboxEntry& entry) { return lane_of(entry) != nullptr; });
  return entries;
}

/// The oldest that was not tried, but no other file for a target whose upload is begun.
std::optional<OutboxEntry> Uploads::next(const Lane& lane) const {
  std::vector<OutboxEntry> begun;
  for (const OutboxEntry& entry : outbox_.waiting()) {
    if (lane_of(entry) != &lane) continue;
    const bool is_behind = std::any_of(begun.begin(), begun.end(), [&](const auto& older) {
      return older.is_for_same_target(entry);
    });
    if (!is_behind && !lane.failed.contains(entry.number)) return entry;
    if (!entry.notes.empty()) begun.push_back(entry);
  }
  return std::nullopt;
}

void Uploads::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!cancelled_) {
    abandon_dropped(lock);
    if (!ending_ && Clock::now() >= lane.retry_at) lane.failed.clear();
    const std::optional<OutboxEntry> entry = next(lane);
    if (!entry) {
      if (ending_) break;
      wake_.wait_for(lock, kGlance);
      continue;
    }
    outbox_.begin(*entry);
    last_failed_ = !send(*lane.destination, *entry, lock);
    if (!last_failed_) {
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

/// @param lock is free during the transfer
/// @return whether the entry is dealt with
bool Uploads::send(Destination& to, const OutboxEntry& entry, std::unique_lock<std::mutex>& lock) {
  UploadNotes notes = {.load =
                           [&] {
                             const std::lock_guard own(mutex_);
                             return outbox_.notes(entry.number);
                           },
                       .keep =
                           [&](const std::string& text) {
                             const std::lock_guard own(mutex_);
                             outbox_.keep_notes(entry.number, text, to.stores_notes());
                           }};
  Outbox::Outcome outcome = Outbox::Outcome::kSent;
  std::string error;
  lock.unlock();
  try {
    to.send(entry, notes, [this] { return cancelled_.load(); });
    log_info("track", "Saved {} to {}", entry.kind, to.place_of(entry.target));
  } catch (const std::exception& fault) {
    const auto* const network = dynamic_cast<const NetworkError*>(&fault);
    const bool passes = cancelled_ || (network != nullptr && may_pass(*network));
    outcome = passes ? Outbox::Outcome::kFailed : Outbox::Outcome::kRefused;
    error = fmt::format(
        "Error saving {} to {}: {}", entry.kind, to.place_of(entry.target), fault.what());
  }
  lock.lock();
  try {
    const bool waits = outbox_.end(entry, outcome);
    const std::string folder = std::filesystem::path(entry.path).parent_path().string();
    error += waits ? "\n  It waits in " + folder + "." : "\n  A newer one takes its place.";
  } catch (const std::exception& fault) {
    errors_.push_back(fmt::format("Error clearing the outbox: {}", fault.what()));
    return false;
  }
  if (outcome != Outbox::Outcome::kSent && !cancelled_) errors_.push_back(error);
  return outcome == Outbox::Outcome::kSent;
}

/// Parts that a service keeps cost money.
void Uploads::abandon_dropped(std::unique_lock<std::mutex>& lock) {
  for (const OutboxEntry& entry : outbox_.take_dropped()) {
    const Lane* const lane = lane_of(entry);
    lock.unlock();
    if (lane != nullptr) lane->destination->abandon(entry, entry.notes);
    lock.lock();
  }
}

void Uploads::begin_end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const auto& lane : lanes_) lane->failed.clear();
  wake_.notify_all();
}

bool Uploads::is_done() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->done || !lane->thread.joinable();
  });
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

void wait_until_sent(const std::function<bool()>& is_sent,
                     const std::function<bool()>& is_stuck,
                     double most_seconds) {
  const Timer total;
  Timer trouble;
  bool told = false, told_stop = false;
  while (!is_sent() && total.seconds() < most_seconds) {
    if (!is_stuck() && stop_requested() == 0) trouble = Timer();
    if (trouble.seconds() >= kSecondsAfterTrouble) break;
    if (const int signal = stop_requested(); signal != 0 && !std::exchange(told_stop, true)) {
      log_info("track",
               "{}: sending ends in {:.0f} s",
               signal_name(signal),
               kSecondsAfterTrouble - trouble.seconds());
    }
    if (!told_stop && total.seconds() > 1 && !std::exchange(told, true)) {
      const bool ends = std::isfinite(most_seconds);
      log_info("track",
               "Sending what is left{}",
               ends ? fmt::format(", {:g} s at most while something moves", most_seconds) : "");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace dalle2
