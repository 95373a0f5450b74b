// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "data/shards/picture_shards.h"
#include "data/shards/shard_check.h"
#include "data/shards/shards.h"
#include "data/shards/url_patterns.h"
#include "io/files/folder_names.h"
#include "run/commands.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostShardsToCheck = 10'000'000;

/// Of a url with {}: --first to --last.
std::vector<std::string> numbered_shards(const ShardsCheckCommand& command) {
  const UrlTemplate shards = parse_url_template(command.url, command.shard_width, "SHARDS");
  if (!command.last_shard) {
    std::string there;
    const auto numbers = is_local_url(command.url) ? existing_numbers(shards) : std::nullopt;
    if (numbers && !numbers->empty()) {
      there = fmt::format("; there are {} to {}", numbers->front(), numbers->back());
    }
    throw ConfigError(
        "SHARDS: \"{}\" has {{}} for a number.\n  Add --last N, the number of the last shard{}.",
        public_url(command.url),
        there);
  }
  const int64_t first = command.first_shard.value_or(0), last = *command.last_shard;
  if (first > last)
    throw ConfigError("--first {} is above --last {}: there is no shard between them", first, last);
  if (last - first >= kMostShardsToCheck) {
    throw ConfigError("--first {} to --last {}: at most {} shards are checked at once",
                      first,
                      last,
                      with_commas(kMostShardsToCheck));
  }
  std::vector<std::string> urls;
  for (int64_t shard = first; shard <= last; ++shard) urls.push_back(shards.with(shard));
  return urls;
}

/// @param listing set for a folder of pictures: holds it listed
std::vector<std::string> shards_to_check(const ShardsCheckCommand& command,
                                         std::shared_ptr<const PictureShards>& listing) {
  std::error_code ignored;  // a list of urls may be longer than a path
  const bool is_folder = std::filesystem::is_directory(local_path(command.url), ignored);
  // Commands have braces of their own.
  const bool is_numbered = has_url_placeholder(command.url) && !command.url.starts_with("pipe:");
  if (!is_folder && (is_numbered || command.last_shard)) return numbered_shards(command);
  if (command.first_shard || command.last_shard) {
    throw ConfigError("{} is only for SHARDS with {{}}, but \"{}\" has none",
                      command.first_shard ? "--first" : "--last",
                      short_shards({command.url}));
  }
  if (!is_folder) return expand_urls(command.url, "SHARDS");
  const std::string folder = local_path(command.url);
  if (!names_ending(folder, ".tar").empty()) return shards_in_folder(folder);
  listing = PictureShards::of(folder);
  return listing->urls();
}

/// @throws DataError, NetworkError for what speaks against training on the shards as they are
void judge(const CheckReport& report, const std::string& shards) {
  if (report.unreachable()) {
    throw NetworkError("{}: some could not be reached (listed above), so the check is incomplete",
                       shards);
  }
  if (report.usable() == 0) throw DataError("{}: not one usable sample", shards);
  const auto bad = std::count_if(report.shards.begin(),
                                 report.shards.end(),
                                 [](const ShardCheck& shard) { return !shard.fault.empty(); });
  std::string faults;
  if (const int64_t unusable = report.samples() - report.usable(); unusable > 0) {
    faults = fmt::format(
        "{} of {} cannot be used", with_commas(unusable), counted(report.samples(), "sample"));
  }
  if (bad > 0) {
    faults += fmt::format("{}{} of {} absent, damaged or empty",
                          faults.empty() ? "" : ", ",
                          with_commas(bad),
                          counted(static_cast<int64_t>(report.shards.size()), "shard"));
  }
  if (!faults.empty()) throw DataError("{}: {} (listed above)", shards, faults);
  if (const int64_t misaligned = report.misaligned(); misaligned > 0) {
    throw DataError("{}: {} have the embeddings of other pictures (listed above)",
                    shards,
                    counted(misaligned, "sample may", "samples may"));
  }
}

}  // namespace

void run_shards_check(const ShardsCheckCommand& command) {
  CheckOptions options;
  std::shared_ptr<const PictureShards> listing;
  options.urls = shards_to_check(command, listing);
  options.img_embeddings_url = command.img_embeddings;
  options.text_embeddings_url = command.text_embeddings;
  options.allow_pipe = command.allow_pipe;
  options.embeddings_in_tar = command.embeddings_in_tar;
  options.shard_width = command.shard_width;
  options.index_width = command.index_width;
  const CheckReport report = check_shards(options, [](int64_t done, int64_t total) {
    log_live(fmt::format("{} of {}", with_commas(done), counted(total, "shard")));
  });
  log_live("");
  for (const std::string& line : describe_check(report)) std::printf("%s\n", line.c_str());
  judge(report, short_shards({command.url}));
}

}  // namespace dalle2
