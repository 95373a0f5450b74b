// SPDX-License-Identifier: MIT
#include "dist/rank_board.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <sstream>
#include <string_view>
#include <utility>

namespace dalle2 {
namespace {

/// A rank that says what it is busy with may take that many times the hang timeout.
constexpr double kBusyFactor = 10;
/// Seconds that a collective may take in which all ranks are.
constexpr double kLeastTransfer = 10;
/// Seconds in a collective before a rank that is silent counts as gone.
constexpr double kLeastWait = 2;

/// Why a rank is what the others wait for; none if it is not.
std::optional<std::string> fault_of(const RankPlace& own,
                                    const std::optional<RankPlace>& other,
                                    double silent_seconds,
                                    double hang_seconds) {
  if (!other) {
    if (silent_seconds < hang_seconds) return std::nullopt;
    return fmt::format("was never heard of in {:.0f} s", silent_seconds);
  }
  // Half the time: so the report is there in good time even if the rank stopped long before. While
  // collectives continue, silence says no more than that the store does not answer.
  const double most_silent =
      own.seconds < kLeastWait ? std::numeric_limits<double>::infinity() : hang_seconds / 2;
  if (auto loss = loss_of(other, silent_seconds, most_silent)) return loss;
  if (own.seconds < hang_seconds) return std::nullopt;
  if (other->ended) return fmt::format("is done, {}", place_text(*other));
  if (is_another_operation(own, *other)) {
    return "meets this one in another operation: " + place_text(*other);
  }
  if (other->sequence >= own.sequence) return std::nullopt;
  if (!other->busy.empty()) {
    if (other->seconds < kBusyFactor * hang_seconds) return std::nullopt;
    return fmt::format("is stuck in: {}; {}", other->busy, place_text(*other));
  }
  return "lives, but does not come: " + place_text(*other);
}

using BoardClock = std::chrono::steady_clock;

/// How long the end of a board waits for a store that does not answer.
constexpr std::chrono::seconds kFarewell{3};

std::string key_of(int rank) {
  return fmt::format("place/{}", rank);
}

}  // namespace

bool is_another_operation(const RankPlace& one, const RankPlace& other) {
  return one.sequence == other.sequence && one.what != other.what;
}

std::string place_text(const RankPlace& place) {
  return fmt::format("{} \"{}\" (number {}, step {}) for {:.0f} s",
                     place.waits ? "in" : "behind",
                     place.what,
                     place.sequence,
                     place.step,
                     place.seconds);
}

std::string reason_of(const std::string& error) {
  constexpr std::string_view kLast = "Last error:";
  std::string reason = error.substr(0, error.find('\n'));
  const size_t last = error.find(kLast);
  if (last == std::string::npos) return reason;
  std::istringstream lines(error.substr(last + kLast.size()));
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin != std::string::npos) reason += "; " + line.substr(begin);
  }
  return reason;
}

std::optional<std::string> loss_of(const std::optional<RankPlace>& other,
                                   double silent_seconds,
                                   double most_silent_seconds) {
  if (other && !other->failure.empty()) return "ended with an error: " + other->failure;
  if ((other && other->ended) || silent_seconds <= most_silent_seconds) return std::nullopt;
  return fmt::format(
      "has not been heard of for {:.0f} s: the process is gone or stopped, or the network is down{}",
      silent_seconds,
      other ? "; it was " + place_text(*other) : "");
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(
    RankPlace, beats, sequence, step, what, waits, seconds, limit, busy, failure, ended)

std::string RankPlace::to_json() const {
  return nlohmann::json(*this).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankPlace RankPlace::from_json(const std::string& text) {
  return nlohmann::json::parse(text).get<RankPlace>();
}

std::optional<std::string> find_hang(int own,
                                     const std::vector<std::optional<RankPlace>>& places,
                                     const std::vector<double>& silent_seconds,
                                     double hang_seconds) {
  const RankPlace& mine = *places[static_cast<size_t>(own)];
  if (!mine.waits) return std::nullopt;
  std::string found;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    if (static_cast<int>(rank) == own) continue;
    const auto fault = fault_of(mine, places[rank], silent_seconds[rank], hang_seconds);
    if (fault) found += fmt::format("\n  rank {} {}", rank, *fault);
  }
  if (found.empty()) {
    // All are in the same place, and still nothing moves: the network between them is at fault. One
    // that is behind may be waited for, and a large sum needs some time however short the limit.
    const bool are_in_it = std::ranges::all_of(
        places, [&](const auto& place) { return place && place->sequence >= mine.sequence; });
    const double most = std::max({hang_seconds, kLeastTransfer, mine.limit});
    if (!are_in_it || mine.seconds < most) return std::nullopt;
    found = "\n  all ranks are in it: look at the network between them";
  }
  return fmt::format("rank {} waits {}:{}", own, place_text(mine), found);
}

struct RankBoard::Shared {
  int rank = 0;
  std::unique_ptr<RankStore> store;  // the thread's alone

  std::mutex mutex;  // all below
  std::condition_variable changed;
  std::optional<RankPlace> to_post;
  bool posting = false, closing = false, ended = false;
  std::vector<std::optional<RankPlace>> places;
  std::vector<BoardClock::time_point> last_beat;
  std::string store_error;
  BoardClock::time_point posting_since;
};

RankBoard::RankBoard(int rank, int size, std::unique_ptr<RankStore> store)
    : shared_(std::make_shared<Shared>()) {
  shared_->rank = rank;
  shared_->store = std::move(store);
  shared_->places.resize(static_cast<size_t>(size));
  shared_->last_beat.assign(static_cast<size_t>(size), BoardClock::now());
  thread_ = std::thread([shared = shared_] { run(*shared); });
}

RankBoard::~RankBoard() {
  std::unique_lock lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock, kFarewell, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void RankBoard::post(const RankPlace& own) {
  const std::lock_guard lock(shared_->mutex);
  shared_->to_post = own;
  shared_->changed.notify_all();
}

bool RankBoard::wait_until_posted(std::chrono::duration<double> limit) {
  std::unique_lock lock(shared_->mutex);
  return shared_->changed.wait_for(
      lock, limit, [this] { return !shared_->to_post && !shared_->posting; });
}

RankBoard::Contents RankBoard::read() const {
  const std::lock_guard lock(shared_->mutex);
  Contents contents{.places = shared_->places,
                    .silent_seconds = {},
                    .store_error = shared_->store_error,
                    .seconds_in_call = 0};
  if (shared_->posting) {
    contents.seconds_in_call =
        std::chrono::duration<double>(BoardClock::now() - shared_->posting_since).count();
  }
  for (const auto& beat : shared_->last_beat) {
    contents.silent_seconds.push_back(
        std::chrono::duration<double>(BoardClock::now() - beat).count());
  }
  return contents;
}

void RankBoard::run(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  const size_t size = shared.places.size();
  std::vector<std::string> keys;
  for (size_t rank = 0; rank < size; ++rank) keys.push_back(key_of(static_cast<int>(rank)));
  for (;;) {
    shared.changed.wait(lock, [&] { return shared.to_post || shared.closing; });
    if (!shared.to_post) break;
    const std::string own = shared.to_post->to_json();
    shared.to_post.reset();
    shared.posting = true;
    shared.posting_since = BoardClock::now();
    lock.unlock();
    std::string error;
    std::vector<std::optional<RankPlace>> found(size);
    try {
      shared.store->set(key_of(shared.rank), own);
      const auto texts = shared.store->get(keys);
      for (size_t rank = 0; rank < size; ++rank) {
        if (texts[rank]) found[rank] = RankPlace::from_json(*texts[rank]);
      }
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    lock.lock();
    for (size_t rank = 0; rank < size; ++rank) {
      auto& known = shared.places[rank];
      if (!found[rank]) continue;
      if (!known || known->beats != found[rank]->beats) shared.last_beat[rank] = BoardClock::now();
      known = std::move(found[rank]);
    }
    shared.store_error = std::move(error);
    shared.posting = false;
    shared.changed.notify_all();
  }
  shared.ended = true;
  shared.changed.notify_all();
}

}  // namespace dalle2
