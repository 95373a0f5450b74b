// SPDX-License-Identifier: MIT
#include "dist/rank_watch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/this_process.h"

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two beats. A rank whose beats fail to come is gone or stopped. Each beat of each rank
/// reads the places of all from one store: many beat more slowly.
std::chrono::milliseconds beat_of(int ranks) {
  constexpr std::chrono::milliseconds kLeast{500}, kPerRank{8};
  return std::max(kLeast, kPerRank * ranks);
}

/// Beats missed after a collective that failed: the rank is what failed.
constexpr int kMissedBeats = 6;
/// Seconds in a collective before a store that fails is the reason.
constexpr double kStoreSilence = 2;
/// Beats that a call of the store may take before it counts as unanswered. A rank counts as silent up
/// to two beats before that call begins, so this has to be well below the silence that is reported.
constexpr int kUnansweredBeats = 2;
/// How long a failed rank's neighbours take to say why, at most, in beats.
constexpr int kExplanationBeats = 10;

double seconds_of(std::chrono::duration<double> time) {
  return time.count();
}

/// A fault of this rank's GPU: no other rank is the cause, and none can know.
bool is_of_own_device(const std::string& reason) {
  return reason.find("CUDA error:") != std::string::npos;
}

}  // namespace

/// Asks the works whether they are done, in a thread of its own: a question to a GPU may wait for its
/// driver, and no beat does.
struct RankWatch::Poller {
  PendingWorks works;
  std::mutex mutex;  // all below
  std::condition_variable wake;
  std::optional<at::Device> device;
  bool closing = false, ended = false;

  void run(std::chrono::milliseconds beat);
};

void RankWatch::Poller::run(std::chrono::milliseconds beat) {
  std::optional<at::Device> current;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, beat, [this] { return closing; })) {
    const std::optional<at::Device> wanted = device;
    lock.unlock();
    try {
      if (wanted != current && wanted->has_index())
        c10::impl::VirtualGuardImpl(wanted->type()).setDevice(*wanted);
    } catch (const std::exception&) {  // what is wrong with the GPU the works say
    }
    current = wanted;
    works.poll();
    lock.lock();
  }
  ended = true;
  wake.notify_all();
}

RankWatch::RankWatch(const World& world,
                     std::unique_ptr<RankStore> store,
                     std::chrono::seconds hang_timeout,
                     OnHang on_hang)
    : world_(world),
      beat_(beat_of(world.size)),
      // A rank whose last beats are on their way is not gone.
      hang_seconds_(std::max(seconds_of(hang_timeout), seconds_of(4 * beat_))),
      on_hang_(std::move(on_hang)),
      board_(world.rank, world.size, std::move(store)),
      poller_(std::make_shared<Poller>()),
      works_(poller_->works) {
  std::thread([poller = poller_, beat = beat_] { poller->run(beat); }).detach();
  thread_ = std::thread([this] { beat(); });
}

RankWatch::~RankWatch() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    own_.ended = true;
  }
  wake_.notify_all();
  thread_.join();
  post_own_place();  // the board sends it before it ends
  std::unique_lock lock(poller_->mutex);
  poller_->closing = true;
  poller_->wake.notify_all();
  // A driver that does not answer keeps the poller, and nobody else.
  poller_->wake.wait_for(lock, kExplanationBeats * beat_, [this] { return poller_->ended; });
}

void RankWatch::meet_all() {
  constexpr std::chrono::milliseconds kPause{10};
  const auto begin = Clock::now();
  const auto all_are_heard_of = [this] {
    const auto places = board_.read().places;
    return std::ranges::all_of(places, [](const auto& place) { return !!place; });
  };
  while (!all_are_heard_of() && Clock::now() - begin < kExplanationBeats * beat_) {
    post_own_place();
    board_.wait_until_posted(kPause);
    std::this_thread::sleep_for(kPause);
  }
}

void RankWatch::set_device(const at::Device& device) {
  const std::lock_guard lock(poller_->mutex);
  poller_->device = device;
}

int64_t RankWatch::begin(const std::string& what, std::chrono::seconds limit) {
  return works_.begin(what, limit);
}

void RankWatch::launched(int64_t number, std::shared_ptr<BackendWork> work) {
  works_.launched(number, std::move(work));
}

void RankWatch::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  own_.step = step;
}

std::string RankWatch::set_busy(const std::string& what) {
  const std::lock_guard lock(mutex_);
  return std::exchange(own_.busy, what);
}

void RankWatch::tell_failure(const std::string& message) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      own_.failure = message.substr(0, 1000);
    }
    post_own_place();
    board_.wait_until_posted(kExplanationBeats *
                             beat_);  // if not, the others find out by its silence
  } catch (const std::exception&) {   // out of memory: so they do then
  }
}

/// With the lock.
RankPlace RankWatch::own_place() {
  const uint64_t before = std::exchange(signs_, signs_of_life());
  if (!own_.busy.empty() && signs_ != before) works_.restart_clock();
  return works_.place(own_);
}

void RankWatch::post_own_place() {
  const std::lock_guard lock(mutex_);
  ++own_.beats;
  board_.post(own_place());
}

/// Empty while there is nothing to report.
std::string RankWatch::hang_report() {
  RankBoard::Contents board = board_.read();
  RankPlace own;
  {
    const std::lock_guard lock(mutex_);
    own = own_place();
  }
  board.places[static_cast<size_t>(world_.rank)] = own;
  if (auto hang = find_hang(world_.rank, board.places, board.silent_seconds, hang_seconds_)) {
    if (board.seconds_in_call <= seconds_of(kUnansweredBeats * beat_)) return *hang;
    return fmt::format(
        "{}\n  the store through which the ranks meet ({}:{}) does not answer either",
        *hang,
        world_.store_host,
        world_.store_port);
  }
  if (board.store_error.empty() || !own.waits || own.seconds <= kStoreSilence) return "";
  return fmt::format(
      "rank {} waits in \"{}\", and the store through which the ranks meet does not answer "
      "({}:{}): {}",
      world_.rank,
      own.what,
      world_.store_host,
      world_.store_port,
      world_.hosts_store ? "the network is down"
                         : "the process that keeps it, that of rank 0 or its launcher, is gone");
}

/// Of a collective that failed while nobody waited in it on the host, as happens on a GPU. None as
/// long as one who does may say it, or the ranks at fault may yet be heard of.
std::optional<RankWatch::Report> RankWatch::report_of(const Failed& failed) {
  const auto since = Clock::now() - failed.since;
  if (since < beat_) return std::nullopt;
  std::string causes;
  if (!is_of_own_device(failed.reason)) {
    causes = culprits_of(failed.number, failed.what);
    if (causes.empty() && since < kExplanationBeats * beat_) return std::nullopt;
  }
  const bool is_own = causes.empty();
  if (is_own) causes = "\n  " + reason_of(failed.reason);
  return Report{.text = failure_text(failed.what, causes), .is_own = is_own};
}

void RankWatch::beat() {
  for (bool told = false;;) {
    post_own_place();
    const std::optional<Failed> failed = works_.failed();
    std::optional<Report> found;
    if (failed) {
      found = report_of(*failed);
    } else if (std::string hang = hang_report(); !hang.empty()) {
      found = Report{.text = std::move(hang)};
    }
    std::unique_lock lock(mutex_);
    if (found && !told && !explaining_ && !closing_) {
      told = true;
      lock.unlock();
      // No other rank is known to be the cause: they hear of it from this one.
      if (found->is_own) tell_failure(found->text);
      on_hang_(found->text);
      lock.lock();
    }
    wake_.wait_for(lock, beat_, [this] { return closing_; });
    if (closing_) return;
  }
}

bool RankWatch::is_waiting() {
  works_.poll();
  return works_.place().waits;
}

/// What the other ranks have to do with a collective that failed; empty: nothing that is known yet.
std::string RankWatch::culprits_of(int64_t number, const std::string& what) {
  const RankBoard::Contents board = board_.read();
  const RankPlace failed{.sequence = number, .what = what};
  std::string culprits;
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank == world_.rank) continue;
    const auto& place = board.places[static_cast<size_t>(rank)];
    const double silent = board.silent_seconds[static_cast<size_t>(rank)];
    if (const auto loss = loss_of(place, silent, seconds_of(kMissedBeats * beat_))) {
      culprits += fmt::format("\n  rank {} {}", rank, *loss);
    } else if (place && place->ended) {
      culprits += fmt::format("\n  rank {} had left already, {}", rank, place_text(*place));
    } else if (place && is_another_operation(failed, *place)) {
      culprits +=
          fmt::format("\n  rank {} meets it in another operation: {}", rank, place_text(*place));
    }
  }
  return culprits;
}

std::string RankWatch::failure_text(const std::string& what, const std::string& causes) {
  const std::lock_guard lock(mutex_);
  return fmt::format("rank {}: \"{}\" failed (step {}):{}", world_.rank, what, own_.step, causes);
}

std::string RankWatch::explain(const std::string& error, int64_t number, const std::string& what) {
  std::string culprits;
  const bool is_own = is_of_own_device(error);
  {
    std::unique_lock lock(mutex_);
    explaining_ = true;  // the one who asks ends the process
    const auto begin = Clock::now();
    while (!is_own && culprits.empty() && Clock::now() - begin < kExplanationBeats * beat_) {
      wake_.wait_for(lock, beat_);
      culprits = culprits_of(number, what);
    }
  }
  if (!is_own && culprits.empty() && !board_.read().store_error.empty() && !world_.hosts_store) {
    culprits = fmt::format(
        "\n  the process that the ranks meet through ({}:{}, that of rank 0 or its launcher) is "
        "gone",
        world_.store_host,
        world_.store_port);
  }
  if (culprits.empty()) culprits = "\n  " + reason_of(error);
  return failure_text(what, culprits);
}

int64_t PendingWorks::begin(const std::string& what, std::chrono::seconds limit) {
  poll();
  const std::lock_guard lock(mutex_);
  last_what_ = what;
  pending_.push_back({++last_sequence_, what, limit, nullptr, Clock::now()});
  return last_sequence_;
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

RankPlace PendingWorks::place(RankPlace place) const {
  const std::lock_guard lock(mutex_);
  place.sequence = last_sequence_;
  place.what = last_what_;
  place.waits = !pending_.empty();
  place.limit = 0;
  Clock::time_point since = last_end_;
  if (!pending_.empty()) {
    const Pending& first = pending_.front();
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
