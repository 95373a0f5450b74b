// SPDX-License-Identifier: MIT
#include "data/loader/drop_log.h"

#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

/// Warnings of one reason before only round counts are reported.
constexpr size_t kToldOneByOne = 3;

/// What several, or one, are called that were left out for a reason. The reason is their name in log.jsonl.
struct Words {
  const char *reason, *many;
  bool is_used = false;       ///< all the same
  const char* one = nullptr;  ///< null: as the reason
};
constexpr Words kReasonWords[] = {
    {drop::kNoPicture, "samples without picture", false, "sample without picture"},
    {drop::kNoCaption, "samples without caption", false, "sample without caption"},
    {drop::kNoImageEmbedding,
     "samples without image embedding",
     false,
     "sample without image embedding"},
    {drop::kNoTextEmbedding,
     "samples without text embedding",
     false,
     "sample without text embedding"},
    {drop::kEmptyShard, "shards without samples"},
    {drop::kShardWithoutEmbeddings, "shards without embeddings"},
    {drop::kEmbeddingNotFinite, "embeddings with NaN or infinity"},
    {drop::kWrongEmbeddingShape, "embeddings of another shape"},
    {drop::kRepeatedMember, "repeated keys or fields"},
    {drop::kShardWithoutEnd, "shards without end marker", true},
    {drop::kUnreadData, "shards with data that is not read", true},
    {drop::kBadCaption,
     "pictures whose captions have no text",
     true,
     "picture whose caption has no text"},
    {drop::kUnreadCaption, "unreadable captions", true},
    {drop::kAssumedEncoding, "captions of an assumed encoding", true},
    {drop::kSeveralLines, "captions of several lines", true},
    {drop::kSeveralPictures, "samples with several pictures", true, "sample with several pictures"},
    {drop::kRepeatedKey, "keys of earlier samples", true},
    {drop::kForeignKey, "keys with another shard's number", true},
    {drop::kSharedRow, "rows of embeddings that two samples have", true},
    {drop::kIdleRow, "rows of embeddings without a sample", true},
};

/// Of other reasons the plural is with an s.
Words words_of(const std::string& reason) {
  Words words{reason.c_str(), ""};
  for (const Words& known : kReasonWords) {
    if (reason == known.reason) words = known;
  }
  if (words.one == nullptr) words.one = words.reason;
  return words;
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

std::vector<std::string> DropLog::examples() const {
  std::vector<std::string> lines;
  int64_t more = 0;
  for (const auto& [reason, count] : counts_) {
    for (const std::string& text : texts_.at(reason)) lines.push_back(printable(text));
    more += count - std::ssize(texts_.at(reason));
  }
  if (more > 0) lines.push_back(fmt::format("and {} more", with_commas(more)));
  return lines;
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
