// SPDX-License-Identifier: MIT
#include "net/http_session.h"

#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace dalle2 {
namespace {

/// More idle sessions than loader threads of a large run are closed.
constexpr size_t kMostIdle = 64;

struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<HttpSession>> sessions;
};

/// Never destroyed: a thread may still hand a session back while the process ends.
Idle& idle() {
  static Idle* const instance = [] {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    return new Idle;
  }();
  return *instance;
}

}  // namespace

HttpSession::HttpSession() : multi_(curl_multi_init()), easy_(curl_easy_init()) {
  if (multi_ == nullptr || easy_ == nullptr) throw ResourceError("out of memory for a transfer");
}

HttpSession::~HttpSession() {
  end();
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

void HttpSession::begin() {
  curl_multi_add_handle(multi_, easy_);
  running_ = true;
}

void HttpSession::end() {
  if (std::exchange(running_, false)) curl_multi_remove_handle(multi_, easy_);
  if (easy_ != nullptr) curl_easy_reset(easy_);
}

std::shared_ptr<HttpSession> borrow_http_session() {
  Idle& pool = idle();
  std::unique_ptr<HttpSession> session;
  {
    const std::lock_guard lock(pool.mutex);
    if (!pool.sessions.empty()) {
      session = std::move(pool.sessions.back());
      pool.sessions.pop_back();
    }
  }
  if (!session) session = std::make_unique<HttpSession>();
  return {session.release(), [&pool](HttpSession* used) {
            std::unique_ptr<HttpSession> owned(used);
            owned->end();
            const std::lock_guard lock(pool.mutex);
            if (pool.sessions.size() < kMostIdle) pool.sessions.push_back(std::move(owned));
          }};
}

}  // namespace dalle2
