// SPDX-License-Identifier: MIT
// A store in memory that several ranks share, and that can stop answering.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <stdexcept>

#include "dist/process_group_backend.h"

namespace dalle2 {

struct StoreContents {
  enum class State { kAnswers, kSilent, kGone };

  void turn(State to) {
    const std::lock_guard lock(mutex);
    state = to;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  State state = State::kAnswers;
  std::map<std::string, std::string> values;
};

/// A call to a silent store lasts until it answers again, as over a network that is cut.
class StoreDouble : public RankStore {
 public:
  explicit StoreDouble(std::shared_ptr<StoreContents> contents) : contents_(std::move(contents)) {}

  void set(const std::string& key, const std::string& value) override {
    const auto lock = answer();
    contents_->values[key] = value;
  }
  std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) override {
    const auto lock = answer();
    std::vector<std::optional<std::string>> texts;
    for (const std::string& key : keys) {
      const auto found = contents_->values.find(key);
      texts.push_back(found == contents_->values.end() ? std::nullopt
                                                       : std::optional(found->second));
    }
    return texts;
  }
  std::string decide(const std::string& key, const std::string& value) override {
    const auto lock = answer();
    return contents_->values.emplace(key, value).first->second;
  }

 private:
  std::unique_lock<std::mutex> answer() {
    std::unique_lock lock(contents_->mutex);
    contents_->changed.wait(lock,
                            [this] { return contents_->state != StoreContents::State::kSilent; });
    if (contents_->state == StoreContents::State::kGone) throw std::runtime_error("broken pipe");
    return lock;
  }

  std::shared_ptr<StoreContents> contents_;
};

}  // namespace dalle2
