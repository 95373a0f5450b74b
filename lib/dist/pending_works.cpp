// SPDX-License-Identifier: MIT
#include "dist/pending_works.h"

#include <algorithm>
#include <utility>

namespace dalle2 {

int64_t PendingWorks::begin(const std::string& what, std::chrono::seconds limit) {
  poll();
  const std::lock_guard lock(mutex_);
  last_.what = what;
  pending_.push_back({++last_.sequence, what, limit, nullptr, Clock::now()});
  return last_.sequence;
}

void PendingWorks::launched(int64_t number, std::shared_ptr<BackendWork> work) {
  const std::lock_guard lock(mutex_);
  for (Pending& each : pending_) {
    if (each.number == number) each.work = std::move(work);
  }
}

void PendingWorks::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& each) { return each.number == number; });
  last_end_ = Clock::now();
}

void PendingWorks::restart_clock() {
  const std::lock_guard lock(mutex_);
  last_end_ = Clock::now();
}

void PendingWorks::poll() {
  const std::unique_lock only_one(polling_, std::try_to_lock);
  while (only_one) {
    Pending first;  // let go at the end of the turn, without a lock
    {
      const std::lock_guard lock(mutex_);
      if (failed_ || pending_.empty() || !pending_.front().work) return;
      first = pending_.front();
    }
    WorkStatus status = first.work->status();
    if (status.state == WorkState::kPending) return;
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || pending_.front().number != first.number) continue;  // it was ended
    if (status.state == WorkState::kFailed) {
      failed_ = {first.number, first.what, std::move(status.fault), Clock::now()};
      return;
    }
    last_end_ = Clock::now();
    pending_.pop_front();
  }
}

PendingWorks::Place PendingWorks::place() const {
  const std::lock_guard lock(mutex_);
  Place place = last_;
  Clock::time_point since = last_end_;
  if (!pending_.empty()) {
    const Pending& first = pending_.front();
    place.waits = true;
    place.sequence = first.number;
    place.what = first.what;
    place.limit = static_cast<double>(first.limit.count());
    // Collectives that were begun together end one after the other.
    since = std::max(first.since, last_end_);
  }
  place.seconds = std::chrono::duration<double>(Clock::now() - since).count();
  return place;
}

std::optional<PendingWorks::Failed> PendingWorks::failed() const {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace dalle2
