// SPDX-License-Identifier: MIT
#include "data/loader/drop_log.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

/// Warnings of one reason before only round counts are reported.
constexpr size_t kToldOneByOne = 3;

/// A reason, which is also its name in log.jsonl, as one and as several things that were left out.
struct Words {
  const char *reason, *one, *many;
  bool is_used = false;  ///< all the same
};
constexpr std::array kReasonWords = {
    Words{drop::kNoPicture, "sample without picture", "samples without picture"},
    Words{drop::kNoCaption, "sample without caption", "samples without caption"},
    Words{drop::kNoImageEmbedding,
          "sample without image embedding",
          "samples without image embedding"},
    Words{
        drop::kNoTextEmbedding, "sample without text embedding", "samples without text embedding"},
    Words{drop::kEmptyShard, drop::kEmptyShard, "shards without samples"},
    Words{
        drop::kShardWithoutEmbeddings, drop::kShardWithoutEmbeddings, "shards without embeddings"},
    Words{drop::kEmbeddingNotFinite, drop::kEmbeddingNotFinite, "embeddings with NaN or infinity"},
    Words{drop::kWrongEmbeddingShape, drop::kWrongEmbeddingShape, "embeddings of another shape"},
    Words{drop::kRepeatedMember, drop::kRepeatedMember, "repeated keys or fields"},
    Words{drop::kShardWithoutEnd, drop::kShardWithoutEnd, "shards without end marker", true},
    Words{drop::kUnreadData, drop::kUnreadData, "shards with data that is not read", true},
    Words{drop::kBadCaption,
          "picture whose caption has no text",
          "pictures whose captions have no text",
          true},
    Words{drop::kAssumedEncoding, drop::kAssumedEncoding, "captions of an assumed encoding", true},
    Words{drop::kSeveralLines, drop::kSeveralLines, "captions of several lines", true},
    Words{drop::kSeveralPictures,
          "sample with several pictures",
          "samples with several pictures",
          true},
};

/// Of other reasons the plural is with an s.
Words words_of(const std::string& reason) {
  const auto* const found =
      std::find_if(kReasonWords.begin(), kReasonWords.end(), [&](const Words& words) {
        return reason == words.reason;
      });
  return found != kReasonWords.end() ? *found : Words{reason.c_str(), reason.c_str(), ""};
}

/// "left out (sample without picture)"
std::string outcome(const std::string& reason, const std::string& times = "") {
  const Words words = words_of(reason);
  return fmt::format(
      "{}{} ({})", words.is_used ? "used all the same" : "left out", times, words.one);
}

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
  for (const auto& [reason, count] : counts_) sum += words_of(reason).is_used ? 0 : count;
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
      log_warning("data", "{}: {}: {} ({} so far)", split, outcome(reason), text, told);
    }
    for (int64_t round = 10; round <= known + count; round *= 10) {
      if (round > known) {
        log_warning("data",
                    "{}: {}, such as {}",
                    split,
                    outcome(reason, fmt::format(" {} times so far", with_commas(round))),
                    texts.back());
      }
    }
    known += count;
    epoch[reason] += count;
  }
}

std::string DropLog::report_all(const std::string& split) const {
  DropCounts total, epoch;
  report(split, total, epoch);
  return describe_drops(total);
}

std::string describe_drops(const DropCounts& counts) {
  std::string left_out, used;
  for (const auto& [reason, count] : counts) {
    const Words words = words_of(reason);
    std::string& text = words.is_used ? used : left_out;
    text += (!text.empty()   ? ", "
             : words.is_used ? "used all the same: "
                             : "left out: ") +
            counted(count, words.one, words.many);
  }
  if (left_out.empty() && used.empty()) return "nothing was found";
  return left_out + (left_out.empty() || used.empty() ? "" : "; ") + used;
}

}  // namespace dalle2
