// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "data/pack.h"
#include "data/shard_check.h"
#include "data/shards.h"
#include "io/demo_images.h"
#include "run/commands.h"

namespace dalle2 {
namespace {

void print_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}

}  // namespace

void run_shards_demo(const ShardsDemoCommand& command) {
  const DemoShardReport report = write_demo_shards(
      {.out = command.out_folder,
       .num = command.num,
       .image_side = static_cast<int>(command.image_side),
       .seed = command.seed},
      [](int64_t done, int64_t total) {
        log_live(fmt::format("{} of {} pictures", with_commas(done), with_commas(total)));
      });
  log_live("");
  std::printf("%s pictures in %ld shards: %s/{}.tar, embeddings in %s/img_emb\n",
              with_commas(report.pictures).c_str(),
              static_cast<long>(report.shards),
              command.out_folder.c_str(),
              command.out_folder.c_str());
  std::printf("%ld combinations that no shard holds: %s/heldout, their truth in truth.json\n",
              static_cast<long>(report.held_out),
              command.out_folder.c_str());
}

ExitCode run_shards_make(const ShardsMakeCommand& command) {
  const PackReport report = pack_folder(command.from_folder,
                                        command.out_folder,
                                        {.samples_per_shard = command.per_shard,
                                         .white_ground = command.white_ground,
                                         .need_captions = command.need_captions,
                                         .first_line_only = command.first_line_only},
                                        [](const PackProgress& progress) {
                                          log_live(fmt::format("{} of {} pictures, {}",
                                                               with_commas(progress.pictures),
                                                               with_commas(progress.total),
                                                               progress.shard));
                                        });
  log_live("");
  print_lines(describe_pack(report));
  return report.stopped ? ExitCode::kStopped : ExitCode::kDone;
}

void run_shards_check(const ShardsCheckCommand& command) {
  CheckOptions options;
  if (std::filesystem::is_directory(command.url)) {
    options.urls = shards_in_folder(command.url);
  } else if (command.last_shard) {
    for (int64_t shard = command.first_shard; shard <= *command.last_shard; ++shard) {
      options.urls.push_back(shard_url(command.url, shard, command.shard_width));
    }
  } else {
    options.urls = expand_urls(command.url);
  }
  options.img_embeddings_url = command.img_embeddings;
  options.text_embeddings_url = command.text_embeddings;
  options.embeddings_in_tar = command.embeddings_in_tar;
  options.index_width = command.index_width;
  const CheckReport report = check_shards(options, [](int64_t done, int64_t total) {
    log_live(fmt::format("{} of {} shards", with_commas(done), with_commas(total)));
  });
  log_live("");
  print_lines(describe_check(report));
  if (report.unreachable()) {
    throw NetworkError(
        "{}: not all could be reached (listed above): what was checked is not the whole",
        public_url(command.url));
  }
  if (report.usable() == 0) throw DataError("{}: not one usable sample", command.url);
  const auto unreadable =
      std::count_if(report.shards.begin(), report.shards.end(), [](const ShardCheck& shard) {
        return !shard.fault.empty();
      });
  if (unreadable > 0 || report.usable() < report.samples()) {
    throw DataError(
        "{}: {} of {} samples are not usable, {} of {} shards are damaged (listed above)",
        command.url,
        with_commas(report.samples() - report.usable()),
        with_commas(report.samples()),
        unreadable,
        report.shards.size());
  }
  if (report.misaligned() > 0) {
    throw DataError("{}: {} samples may have the embeddings of other pictures (listed above)",
                    command.url,
                    with_commas(report.misaligned()));
  }
}

}  // namespace dalle2
