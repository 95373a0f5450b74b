// SPDX-License-Identifier: MIT
#include "data/drop_log.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

/// Warnings of one reason before only round counts are told.
constexpr size_t kToldOneByOne = 10;

}  // namespace

void DropLog::add(const std::string& reason, std::string text) {
  ++counts_[reason];
  std::vector<std::string>& texts = texts_[reason];
  if (texts.size() < kToldOneByOne) texts.push_back(std::move(text));
}

void DropLog::merge(DropLog&& later) {
  for (const auto& [reason, count] : later.counts_) counts_[reason] += count;
  for (auto& [reason, texts] : later.texts_) {
    std::vector<std::string>& own = texts_[reason];
    for (std::string& text : texts) {
      if (own.size() < kToldOneByOne) own.push_back(std::move(text));
    }
  }
}

int64_t DropLog::total() const {
  int64_t sum = 0;
  for (const auto& [reason, count] : counts_) sum += count;
  return sum;
}

void DropLog::report(const std::string& split, DropCounts& total, DropCounts& epoch) const {
  for (const auto& [reason, count] : counts_) {
    int64_t& known = total[reason];
    const std::vector<std::string>& texts = texts_.at(reason);
    int64_t told = known;
    for (const std::string& text : texts) {
      if (told >= static_cast<int64_t>(kToldOneByOne)) break;
      ++told;
      log_warning("data", "{}: {} left out, {} ({} so far)", split, reason, text, told);
    }
    for (int64_t round = 100; round <= known + count; round *= 10) {
      if (round > known) {
        log_warning("data",
                    "{}: {} left out {} times so far, last {}",
                    split,
                    reason,
                    with_commas(round),
                    texts.back());
      }
    }
    known += count;
    epoch[reason] += count;
  }
}

std::string describe_drops(const DropCounts& counts) {
  std::string text;
  for (const auto& [reason, count] : counts) {
    if (!text.empty()) text += ", ";
    text += with_commas(count) + " " + reason;
  }
  return text.empty() ? "nothing was found" : text;
}

}  // namespace dalle2
