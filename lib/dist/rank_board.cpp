// SPDX-License-Identifier: MIT
#include "dist/rank_board.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <utility>

namespace dalle2 {
namespace {

using BoardClock = std::chrono::steady_clock;

/// How long the end of a board waits for a store that does not answer.
constexpr std::chrono::seconds kFarewell{3};

std::string key_of(int rank) {
  return fmt::format("place/{}", rank);
}

}  // namespace

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
