// SPDX-License-Identifier: MIT
#include "dist/rank_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two beats. A rank whose beats fail to come is gone or stopped.
constexpr std::chrono::milliseconds kBeat{500};
/// A rank that says what it is busy with may take so many times the hang timeout.
constexpr double kBusyFactor = 10;
/// Without a beat, behind a collective that failed: the rank is what failed.
constexpr std::chrono::duration<double> kSilence{3};
/// How long a failed rank's neighbours take to say why, at most.
constexpr std::chrono::seconds kExplanation{5};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string key_of(int rank) {
  return fmt::format("place/{}", rank);
}

std::string place_text(const RankPlace& place) {
  return place.waits ? fmt::format("in \"{}\" (number {}, step {}) for {:.0f} s",
                                   place.what,
                                   place.sequence,
                                   place.step,
                                   place.seconds)
                     : fmt::format("behind \"{}\" (number {}, step {}) for {:.0f} s",
                                   place.what,
                                   place.sequence,
                                   place.step,
                                   place.seconds);
}

/// Why a rank is gone; none if it is there, or done.
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

/// Why a rank is what the others wait for; none if it is not.
std::optional<std::string> fault_of(const RankPlace& own,
                                    const std::optional<RankPlace>& other,
                                    double silent_seconds,
                                    double hang_seconds) {
  if (!other) {
    if (silent_seconds < hang_seconds) return std::nullopt;
    return fmt::format("was never heard of in {:.0f} s", silent_seconds);
  }
  // Half the time: so the report is there in good time even if the rank stopped long before.
  if (auto loss = loss_of(other, silent_seconds, hang_seconds / 2)) return loss;
  if (own.seconds < hang_seconds) return std::nullopt;
  if (other->ended) return fmt::format("is done, {}", place_text(*other));
  if (other->sequence == own.sequence && other->waits && other->what != own.what) {
    return "meets this one in another operation: " + place_text(*other);
  }
  if (other->sequence >= own.sequence) return std::nullopt;
  if (!other->busy.empty()) {
    if (other->seconds < kBusyFactor * hang_seconds) return std::nullopt;
    return fmt::format("is stuck in: {}; {}", other->busy, place_text(*other));
  }
  return "lives, but does not come: " + place_text(*other);
}

}  // namespace

std::string RankPlace::to_json() const {
  return nlohmann::json{{"beats", beats},
                        {"sequence", sequence},
                        {"step", step},
                        {"what", what},
                        {"waits", waits},
                        {"seconds", seconds},
                        {"busy", busy},
                        {"failure", failure},
                        {"ended", ended}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankPlace RankPlace::from_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  RankPlace place;
  place.beats = json.at("beats");
  place.sequence = json.at("sequence");
  place.step = json.at("step");
  place.what = json.at("what");
  place.waits = json.at("waits");
  place.seconds = json.at("seconds");
  place.busy = json.at("busy");
  place.failure = json.at("failure");
  place.ended = json.at("ended");
  return place;
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
    // All are in the same place, and still nothing moves: the network between them is at fault.
    if (mine.seconds < kBusyFactor * hang_seconds) return std::nullopt;
    found = "\n  all ranks are in it: look at the network between them";
  }
  return fmt::format("rank {} waits {}:{}", own, place_text(mine), found);
}

RankWatch::RankWatch(const World& world,
                     std::unique_ptr<RankStore> store,
                     std::chrono::seconds hang_timeout,
                     std::function<void(const std::string&)> on_hang)
    : world_(world),
      store_(std::move(store)),
      hang_seconds_(static_cast<double>(hang_timeout.count())),
      on_hang_(std::move(on_hang)),
      places_(static_cast<size_t>(world.size)),
      last_beat_(static_cast<size_t>(world.size), Clock::now()) {
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
}

int64_t RankWatch::begin(const std::string& what, std::shared_ptr<BackendWork> work) {
  const std::lock_guard lock(mutex_);
  own_.what = what;
  pending_.push_back({++own_.sequence, what, std::move(work), Clock::now()});
  return own_.sequence;
}

void RankWatch::end(int64_t number) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& each) { return each.number == number; });
  if (number == own_.sequence) last_end_ = Clock::now();
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
    publish(*store_->clone());
  } catch (const std::exception&) {  // then the others find out by its silence
  }
}

/// With the lock.
RankPlace RankWatch::own_place() {
  while (!pending_.empty() && pending_.front().work && pending_.front().work->is_done()) {
    last_end_ = Clock::now();
    pending_.pop_front();
  }
  RankPlace place = own_;
  place.waits = !pending_.empty();
  if (place.waits) {
    place.sequence = pending_.front().number;
    place.what = pending_.front().what;
    place.seconds = seconds_since(pending_.front().since);
  } else {
    place.seconds = seconds_since(last_end_);
  }
  return place;
}

void RankWatch::publish(RankStore& store) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    ++own_.beats;
    text = own_place().to_json();
  }
  store.set(key_of(world_.rank), text);
}

/// Reads where the others are.
void RankWatch::look(RankStore& store) {
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank == world_.rank) continue;
    const std::optional<std::string> text = store.get(key_of(rank));
    if (!text) continue;
    const RankPlace place = RankPlace::from_json(*text);
    const std::lock_guard lock(mutex_);
    auto& known = places_[static_cast<size_t>(rank)];
    if (!known || known->beats != place.beats) last_beat_[static_cast<size_t>(rank)] = Clock::now();
    known = place;
  }
}

std::string RankWatch::report() {
  const std::lock_guard lock(mutex_);
  places_[static_cast<size_t>(world_.rank)] = own_place();
  std::vector<double> silent;
  for (const auto& beat : last_beat_) silent.push_back(seconds_since(beat));
  return find_hang(world_.rank, places_, silent, hang_seconds_).value_or("");
}

void RankWatch::run() {
  bool told = false;
  for (;;) {
    try {
      publish(*store_);
      look(*store_);
      const std::lock_guard lock(mutex_);
      store_error_.clear();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      store_error_ = error.what();
    }
    wake_.notify_all();
    std::string found = told ? "" : report();
    std::unique_lock lock(mutex_);
    if (closing_) return;
    if (found.empty() && !told && !store_error_.empty() && !pending_.empty() &&
        seconds_since(pending_.front().since) > 2) {
      found = fmt::format(
          "rank {} waits in \"{}\", and what the ranks meet through does not answer ({}:{}): {}",
          world_.rank,
          pending_.front().what,
          world_.store_host,
          world_.store_port,
          world_.hosts_store
              ? "the network is down"
              : "the process that keeps it, that of rank 0 or its launcher, is gone");
    }
    if (!found.empty() && !explaining_) {
      told = true;
      lock.unlock();
      on_hang_(found);
      lock.lock();
    }
    wake_.wait_for(lock, kBeat, [this] { return closing_; });
    if (closing_) {
      lock.unlock();
      try {
        publish(*store_);
      } catch (const std::exception&) {  // the one that kept it was done before
      }
      return;
    }
  }
}

std::string RankWatch::explain(const std::string& error) {
  std::unique_lock lock(mutex_);
  explaining_ = true;  // the one who asks ends the process
  const std::string what = pending_.empty() ? own_.what : pending_.front().what;
  const auto begin = Clock::now();
  std::string culprits;
  while (culprits.empty() && Clock::now() - begin < kExplanation) {
    wake_.wait_for(lock, kBeat);
    for (int rank = 0; rank < world_.size; ++rank) {
      if (rank == world_.rank) continue;
      const auto& place = places_[static_cast<size_t>(rank)];
      const double silent = seconds_since(last_beat_[static_cast<size_t>(rank)]);
      if (const auto loss = loss_of(place, silent, kSilence.count())) {
        culprits += fmt::format("\n  rank {} {}", rank, *loss);
      } else if (place && place->ended) {
        culprits += fmt::format("\n  rank {} had left already, {}", rank, place_text(*place));
      }
    }
  }
  if (culprits.empty() && !store_error_.empty() && !world_.hosts_store) {
    culprits = fmt::format(
        "\n  the process that the ranks meet through ({}:{}, that of rank 0 or its launcher) is gone",
        world_.store_host,
        world_.store_port);
  }
  if (culprits.empty()) culprits = "\n  " + error.substr(0, error.find('\n'));
  return fmt::format("rank {}: \"{}\" failed (step {}):{}", world_.rank, what, own_.step, culprits);
}

}  // namespace dalle2
