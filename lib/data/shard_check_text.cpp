// SPDX-License-Identifier: MIT
// The findings of `shards check` in words.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "data/embeddings.h"
#include "data/shard_check.h"

namespace dalle2 {
namespace {

/// "3 broken pictures, " for a count above 0.
void append_count(std::string& text, int64_t count, const std::string& what) {
  if (count == 0) return;
  if (!text.empty()) text += ", ";
  text += with_commas(count) + " " + what;
}

std::string faults_of(const EmbeddingCheck& check, const std::string& kind) {
  std::string text = check.fault;
  append_count(text, check.missing, "without " + kind + " embedding");
  append_count(text, check.zero, "zero " + kind + " embeddings");
  append_count(text, check.not_finite, kind + " embeddings not finite");
  append_count(text, check.wrong_shape, kind + " embeddings of another shape");
  return text;
}

std::string faults_of(const ShardCheck& shard) {
  std::string text = shard.fault;
  append_count(text, shard.no_picture, "without picture");
  append_count(text, shard.broken_pictures, "broken pictures");
  append_count(text, shard.no_caption, "without caption");
  append_count(text, shard.repeated_keys, "repeated keys");
  append_count(text, shard.repeated_members, "repeated members");
  for (const std::string& more : {faults_of(shard.image, "image"), faults_of(shard.text, "text")}) {
    if (more.empty()) continue;
    if (!text.empty()) text += ", ";
    text += more;
  }
  return text;
}

}  // namespace

std::vector<std::string> describe_check(const CheckReport& report) {
  std::vector<std::string> lines;
  int64_t faultless = 0, narrowest = 0;
  for (const ShardCheck& shard : report.shards) {
    if (shard.narrowest > 0) {
      narrowest = narrowest == 0 ? shard.narrowest : std::min(narrowest, shard.narrowest);
    }
    const std::string faults = faults_of(shard);
    if (faults.empty()) {
      ++faultless;
      continue;
    }
    lines.push_back(fmt::format("{}: {} samples, {} usable: {}",
                                shard.url,
                                with_commas(shard.samples),
                                with_commas(shard.usable),
                                faults));
    for (const std::string& example : shard.examples) lines.push_back("    " + example);
  }
  lines.push_back(fmt::format("{} shards, {} of them without fault",
                              with_commas(static_cast<int64_t>(report.shards.size())),
                              with_commas(faultless)));
  lines.push_back(fmt::format("{} samples, {} usable; shortest side of a picture {} pixels",
                              with_commas(report.samples()),
                              with_commas(report.usable()),
                              narrowest));
  if (!report.image_row_shape.empty()) {
    lines.push_back("image embeddings of shape " + shape_text(report.image_row_shape));
  }
  if (!report.text_row_shape.empty()) {
    lines.push_back("text embeddings of shape " + shape_text(report.text_row_shape));
  }
  if (report.unused_files > 0) {
    lines.push_back(fmt::format("{} of {} embedding files are for none of these shards",
                                with_commas(report.unused_files),
                                with_commas(report.embedding_files)));
  }
  return lines;
}

}  // namespace dalle2
