// SPDX-License-Identifier: MIT
#include "dist/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/sign_of_life.h"

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two beats. A rank whose beats fail to come is gone or stopped. Each beat of each rank
/// reads the places of all from one store: many beat more slowly.
std::chrono::milliseconds beat_of(int ranks) {
  constexpr std::chrono::milliseconds kLeast{500}, kPerRank{8};
  return std::max(kLeast, kPerRank * ranks);
}

/// Beats missed behind a collective that failed: the rank is what failed.
constexpr int kMissedBeats = 6;
/// Seconds in a collective before a store that fails is the reason.
constexpr double kStoreSilence = 2;
/// How long a failed rank's neighbours take to say why, at most, in beats.
constexpr int kExplanationBeats = 10;

double seconds_of(std::chrono::duration<double> time) {
  return time.count();
}

double seconds_since(Clock::time_point begin) {
  return seconds_of(Clock::now() - begin);
}

}  // namespace

RankWatch::RankWatch(const World& world,
                     std::unique_ptr<RankStore> store,
                     std::chrono::seconds hang_timeout,
                     std::function<void(const std::string&)> on_hang)
    : world_(world),
      beat_(beat_of(world.size)),
      // A rank whose last beats are on their way is not gone.
      hang_seconds_(std::max(seconds_of(hang_timeout), seconds_of(4 * beat_))),
      on_hang_(std::move(on_hang)),
      board_(world.rank, world.size, std::move(store)) {
  own_.what = "start";
  thread_ = std::thread([this] { run(); });
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
}

void RankWatch::meet_all() {
  constexpr std::chrono::milliseconds kPause{10};
  const auto begin = Clock::now();
  const auto all_are_heard_of = [this] {
    const auto places = board_.read().places;
    return std::all_of(places.begin(), places.end(), [](const auto& place) { return !!place; });
  };
  while (!all_are_heard_of() && Clock::now() - begin < kExplanationBeats * beat_) {
    post_own_place();
    board_.wait_until_posted(kPause);
    std::this_thread::sleep_for(kPause);
  }
}

int64_t RankWatch::begin(const std::string& what) {
  const std::lock_guard lock(mutex_);
  drop_done();
  own_.what = what;
  pending_.push_back({++own_.sequence, what, nullptr, Clock::now()});
  return own_.sequence;
}

void RankWatch::launched(int64_t number, std::shared_ptr<BackendWork> work) {
  const std::lock_guard lock(mutex_);
  for (Pending& each : pending_) {
    if (each.number == number) each.work = std::move(work);
  }
}

void RankWatch::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& each) { return each.number == number; });
  last_end_ = Clock::now();
}

void RankWatch::set_step(int64_t step) {
  const std::lock_guard lock(mutex_);
  own_.step = step;
}

std::string RankWatch::set_busy(const std::string& what) {
  const std::lock_guard lock(mutex_);
  return std::exchange(own_.busy, what);
}

void RankWatch::still_busy() {
  const std::lock_guard lock(mutex_);
  last_end_ = Clock::now();
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

/// With the lock. What is done lets its tensors go here, where nobody waited on the host.
void RankWatch::drop_done() {
  while (!pending_.empty() && pending_.front().work && pending_.front().work->is_done()) {
    last_end_ = Clock::now();
    pending_.pop_front();
  }
}

/// With the lock.
RankPlace RankWatch::own_place() {
  drop_done();
  const uint64_t before = std::exchange(signs_, signs_of_life());
  if (!own_.busy.empty() && signs_ != before) last_end_ = Clock::now();
  RankPlace place = own_;
  place.waits = !pending_.empty();
  if (place.waits) {
    place.sequence = pending_.front().number;
    place.what = pending_.front().what;
    // Collectives that were begun together end one after the other.
    place.seconds = seconds_since(std::max(pending_.front().since, last_end_));
  } else {
    place.seconds = seconds_since(last_end_);
  }
  return place;
}

void RankWatch::post_own_place() {
  const std::lock_guard lock(mutex_);
  ++own_.beats;
  board_.post(own_place());
}

std::string RankWatch::report() {
  RankBoard::Contents board = board_.read();
  const std::lock_guard lock(mutex_);
  board.places[static_cast<size_t>(world_.rank)] = own_place();
  if (auto hang = find_hang(world_.rank, board.places, board.silent_seconds, hang_seconds_)) {
    if (board.seconds_in_call <= kStoreSilence) return *hang;
    return fmt::format("{}\n  what the ranks meet through ({}:{}) does not answer either",
                       *hang,
                       world_.store_host,
                       world_.store_port);
  }
  if (board.store_error.empty() || pending_.empty() ||
      seconds_since(pending_.front().since) <= kStoreSilence) {
    return "";
  }
  return fmt::format(
      "rank {} waits in \"{}\", and what the ranks meet through does not answer ({}:{}): {}",
      world_.rank,
      pending_.front().what,
      world_.store_host,
      world_.store_port,
      world_.hosts_store ? "the network is down"
                         : "the process that keeps it, that of rank 0 or its launcher, is gone");
}

void RankWatch::run() {
  for (bool told = false;;) {
    post_own_place();
    const std::string found = told ? "" : report();
    std::unique_lock lock(mutex_);
    if (!found.empty() && !explaining_ && !closing_) {
      told = true;
      lock.unlock();
      on_hang_(found);
      lock.lock();
    }
    wake_.wait_for(lock, beat_, [this] { return closing_; });
    if (closing_) return;
  }
}

bool RankWatch::is_waiting() {
  const std::lock_guard lock(mutex_);
  drop_done();
  return !pending_.empty();
}

std::string RankWatch::explain(const std::string& error, int64_t number, const std::string& what) {
  std::unique_lock lock(mutex_);
  explaining_ = true;  // the one who asks ends the process
  RankPlace failed = own_;
  failed.sequence = number;
  failed.what = what;
  const auto begin = Clock::now();
  std::string culprits;
  while (culprits.empty() && Clock::now() - begin < kExplanationBeats * beat_) {
    wake_.wait_for(lock, beat_);
    const RankBoard::Contents board = board_.read();
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
  }
  if (culprits.empty() && !board_.read().store_error.empty() && !world_.hosts_store) {
    culprits = fmt::format(
        "\n  the process that the ranks meet through ({}:{}, that of rank 0 or its launcher) is gone",
        world_.store_host,
        world_.store_port);
  }
  if (culprits.empty()) culprits = "\n  " + error.substr(0, error.find('\n'));
  return fmt::format("rank {}: \"{}\" failed (step {}):{}", world_.rank, what, own_.step, culprits);
}

}  // namespace dalle2
