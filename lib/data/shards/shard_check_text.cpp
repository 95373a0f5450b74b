// SPDX-License-Identifier: MIT
// The findings of `shards check` in words.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/embeddings/embeddings.h"
#include "data/shards/shard_check.h"

namespace dalle2 {
namespace {

/// "3 broken pictures" for a count above 0, behind a comma.
void append_count(std::string& text,
                  int64_t count,
                  const std::string& one,
                  const std::string& many) {
  if (count == 0) return;
  if (!text.empty()) text += ", ";
  text += counted(count, one, many);
}

void append_count(std::string& text, int64_t count, const std::string& what) {
  append_count(text, count, what, what);
}

void append_text(std::string& text, const std::string& more) {
  if (more.empty()) return;
  if (!text.empty()) text += ", ";
  text += more;
}

std::string faults_of(const EmbeddingCheck& check, const std::string& kind) {
  const std::string one = kind + " embedding", many = kind + " embeddings";
  std::string text = printable(check.fault);
  append_count(text, check.missing, "without " + kind + " embedding");
  append_count(text, check.zero, "zero " + one, "zero " + many);
  append_count(text, check.not_finite, one + " not finite", many + " not finite");
  append_count(text, check.wrong_shape, one + " of another shape", many + " of another shape");
  append_count(text, check.shared, "shares a row of " + many, "share a row of " + many);
  append_count(text, check.idle, one + " without a sample", many + " without a sample");
  return text;
}

std::string faults_of(const ShardCheck& shard) {
  std::string text = printable(shard.fault);
  append_count(text, shard.no_picture, "without picture");
  append_count(text, shard.broken_pictures, "broken picture", "broken pictures");
  append_count(text, shard.repeated_keys, "repeated key", "repeated keys");
  append_count(text, shard.repeated_members, "repeated member", "repeated members");
  append_count(text,
               shard.foreign_keys,
               "key with another shard's number",
               "keys with another shard's number");
  if (shard.without_end) append_text(text, "without its end marker: it may have been cut");
  append_text(text, shard.unread);
  append_text(text, faults_of(shard.image, "image"));
  append_text(text, faults_of(shard.text, "text"));
  return text;
}

constexpr int64_t EmbeddingCheck::*kEmbeddingCounts[] = {&EmbeddingCheck::missing,
                                                         &EmbeddingCheck::zero,
                                                         &EmbeddingCheck::not_finite,
                                                         &EmbeddingCheck::wrong_shape,
                                                         &EmbeddingCheck::found,
                                                         &EmbeddingCheck::rows,
                                                         &EmbeddingCheck::beyond,
                                                         &EmbeddingCheck::shared,
                                                         &EmbeddingCheck::idle};
constexpr int64_t ShardCheck::*kShardCounts[] = {&ShardCheck::samples,
                                                 &ShardCheck::usable,
                                                 &ShardCheck::no_picture,
                                                 &ShardCheck::broken_pictures,
                                                 &ShardCheck::no_caption,
                                                 &ShardCheck::repeated_keys,
                                                 &ShardCheck::repeated_members,
                                                 &ShardCheck::foreign_keys,
                                                 &ShardCheck::several_pictures};

/// All shards as one, without the faults that are of a whole shard.
ShardCheck sum_of(const std::vector<ShardCheck>& shards) {
  ShardCheck sum;
  for (const ShardCheck& shard : shards) {
    for (const auto count : kShardCounts) sum.*count += shard.*count;
    for (const auto count : kEmbeddingCounts) {
      sum.image.*count += shard.image.*count;
      sum.text.*count += shard.text.*count;
    }
    for (const auto& [side, pictures] : shard.short_sides) sum.short_sides[side] += pictures;
    sum.pictures.add(shard.pictures);
  }
  return sum;
}

std::string describe_shard(const ShardCheck& shard, const std::string& faults) {
  if (shard.samples == 0) {
    return fmt::format("{}: no sample{}", one_line(shard.url), faults.empty() ? "" : ": " + faults);
  }
  return fmt::format("{}: {}, {} usable{}",
                     one_line(shard.url),
                     counted(shard.samples, "sample"),
                     shard.usable == shard.samples ? "all" : with_commas(shard.usable),
                     faults.empty() ? "" : ": " + faults);
}

/// "image embeddings: shape [512], 3,664 rows in files, for 3,664 samples".
void describe_embeddings(const std::string& kind,
                         const EmbeddingCheck& sum,
                         const std::vector<int64_t>& shape,
                         std::vector<std::string>& lines) {
  if (shape.empty()) return;
  const std::string rows = sum.rows > 0 ? counted(sum.rows, "row") + " in files, " : std::string();
  lines.push_back(fmt::format("{} embeddings of shape {}: {}{}",
                              kind,
                              shape_text(shape),
                              rows,
                              counted(sum.found, "sample has one", "samples have one")));
}

/// What to do about rows and keys that do not fit.
void describe_alignment(const ShardCheck& sum, std::vector<std::string>& lines) {
  int64_t odd = sum.foreign_keys;
  for (const EmbeddingCheck* check : {&sum.image, &sum.text})
    odd += check->beyond + check->shared + check->idle;
  if (odd == 0) return;
  lines.push_back("some rows of embeddings do not belong to the samples with their numbers:");
  lines.push_back(
      "    a sample's row is the number in the last digits of its key (--index-width), its file "
      "the one with the shard's number;");
  lines.push_back(
      "    keys of img2dataset have as many such digits as the number of samples in a shard needs: 1 "
      "for up to 10, 2 for up to 100;");
  lines.push_back(
      "    embeddings made from other shards, or in another order, belong to other pictures");
}

/// What is not a fault of a sample, but may surprise.
void describe_pictures(const ShardCheck& sum, std::vector<std::string>& lines) {
  if (sum.no_caption > 0) {
    lines.push_back(counted(sum.no_caption, "sample has", "samples have") +
                    " no caption, which only a CLIP needs");
  }
  for (std::string& line : sum.pictures.describe()) lines.push_back(std::move(line));
  if (sum.several_pictures > 0) {
    lines.push_back(counted(sum.several_pictures, "sample has", "samples have") +
                    " several pictures: of jpg, jpeg, png, webp and jfif, the first is used");
  }
}

}  // namespace

std::vector<std::string> describe_check(const CheckReport& report) {
  std::vector<std::string> lines;
  int64_t faultless = 0, bad = 0, without_end = 0, without_image_file = 0, without_text_file = 0;
  for (const ShardCheck& shard : report.shards) {
    const std::string faults = faults_of(shard);
    faultless += faults.empty() ? 1 : 0;
    bad += shard.fault.empty() ? 0 : 1;
    without_end += shard.without_end ? 1 : 0;
    without_image_file += shard.image.fault.empty() ? 0 : 1;
    without_text_file += shard.text.fault.empty() ? 0 : 1;
    // Of a folder's virtual shards only those that have something to tell.
    if (!shard.is_virtual || !faults.empty()) lines.push_back(describe_shard(shard, faults));
    for (const std::string& example : shard.examples) lines.push_back("    " + example);
    if (shard.untold > 0) lines.push_back("    and " + with_commas(shard.untold) + " more");
  }
  const ShardCheck sum = sum_of(report.shards);
  std::string shards = counted(static_cast<int64_t>(report.shards.size()), "shard");
  append_count(shards, faultless, "of them without fault");
  append_count(shards, bad, "absent, damaged or without samples");
  append_count(shards, without_end, "without end marker");
  append_count(shards, without_image_file, "without a readable file of image embeddings");
  append_count(shards, without_text_file, "without a readable file of text embeddings");
  lines.push_back("in all: " + shards);
  lines.push_back(fmt::format("{}, {} usable; shortest side of a picture {} pixels",
                              counted(sum.samples, "sample"),
                              with_commas(sum.usable),
                              sum.narrowest()));
  const std::string faults = faults_of(sum);
  if (!faults.empty()) lines.push_back("faults: " + faults);
  describe_embeddings("image", sum.image, report.image_row_shape, lines);
  describe_embeddings("text", sum.text, report.text_row_shape, lines);
  if (report.unused_files > 0) {
    lines.push_back(fmt::format("{} of {} {} for none of these shards",
                                with_commas(report.unused_files),
                                counted(report.embedding_files, "embedding file"),
                                report.unused_files == 1 ? "is" : "are"));
  }
  describe_alignment(sum, lines);
  describe_pictures(sum, lines);
  lines.insert(lines.end(), report.split_differences.begin(), report.split_differences.end());
  DropLog captions;
  for (ShardCheck shard : report.shards) captions.merge(std::move(shard.captions));
  if (!captions.empty()) lines.push_back(captions.report_all("captions"));
  return lines;
}

}  // namespace dalle2
