// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "data/shards/pack.h"
#include "io/files/folder_names.h"
#include "run/commands.h"
#include "run/init/first_config.h"

namespace dalle2 {

namespace {

DealOptions deal_options(const ShardsMakeCommand& command) {
  return {.order = command.together   ? FolderOrder::together
                   : command.in_order ? FolderOrder::in_order
                                      : FolderOrder::mixed,
          .seed = command.seed,
          .per_shard = command.per_shard,
          .index_width = command.index_width};
}

ExitCode stopped() {
  std::printf("stopped by a signal; no shard was written\n");
  return ExitCode::kStopped;
}

ExitCode mix(const ShardsMakeCommand& command) {
  if (command.ground || command.need_captions || command.first_line_only) {
    throw ConfigError(
        "--from {}: holds shards, whose samples are mixed as they are; expected no option of pictures "
        "(--ground, --need-captions, --first-line)\n  To change pictures or captions, pack the folder "
        "of pictures again.",
        printable(command.from_folder));
  }
  const MixReport report =
      mix_shards(command.from_folder,
                 command.out_folder,
                 deal_options(command),
                 command.overwrite,
                 [](int64_t done, int64_t total) {
                   log_live(fmt::format("{} of {}", with_commas(done), counted(total, "sample")));
                 });
  log_live("");
  if (report.stopped) return stopped();
  if (!report.removed.empty()) std::printf("removed: %s\n", short_list(report.removed).c_str());
  std::printf("%s in %s\n",
              counted(report.samples, "sample").c_str(),
              counted(report.shards, "shard").c_str());
  if (report.arrays > 0) {
    std::printf("%s, %s absent\n",
                counted(report.arrays, "file of rows", "files of rows").c_str(),
                counted(report.absent_rows, "row").c_str());
  }
  std::printf("next: dalle2-train shards check %s\n", command.out_folder.c_str());
  return ExitCode::kDone;
}

}  // namespace

ExitCode run_shards_make(const ShardsMakeCommand& command) {
  const std::vector<std::string> tars = names_ending(command.from_folder, ".tar");
  const bool has_shards = std::any_of(
      tars.begin(), tars.end(), [](const std::string& name) { return !name.starts_with('.'); });
  const bool is_again =
      canonical_folder(command.out_folder) == canonical_folder(command.from_folder);
  if (has_shards && !is_again) {
    if (holds_files(command.from_folder, kPictureEndings, /*below=*/true)) {
      throw ConfigError(
          "--from {}: expected pictures or shards, found both\n  Move the shards ({} ...) to a folder of "
          "their own.",
          printable(command.from_folder),
          printable(tars.front()));
    }
    return mix(command);
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(command.from_folder, ignored) &&
      is_in_folder(canonical_folder(command.out_folder), canonical_folder(command.from_folder))) {
    log_warning(
        "data",
        "--out {} is --from {} or inside it: a VAE with that folder as its data.folder reads each picture "
        "twice, from its file and from the shards",
        printable(command.out_folder),
        printable(command.from_folder));
  }
  std::optional<Rgb> ground;
  if (command.ground) ground = rgb_from_text("--ground", *command.ground);
  const PackReport report =
      pack_folder(command.from_folder,
                  command.out_folder,
                  {.deal = deal_options(command),
                   .ground = ground,
                   .need_captions = command.need_captions,
                   .captions = {.caption_encoding = command.caption_encoding,
                                .caption_lines = command.first_line_only ? CaptionLines::first
                                                                         : CaptionLines::all},
                   .overwrite = command.overwrite},
                  [](const PackProgress& progress) {
                    log_live(fmt::format("{} of {}, {}",
                                         with_commas(progress.pictures),
                                         counted(progress.total, "picture"),
                                         progress.shard));
                  });
  log_live("");
  if (report.stopped) return stopped();
  for (const std::string& line : describe_pack(report)) std::printf("%s\n", line.c_str());
  if (report.packed == 0) {
    throw DataError("{}: not one usable picture, so no shard was written", command.from_folder);
  }
  std::printf("next: dalle2-train init %s\n", command.out_folder.c_str());
  return ExitCode::kDone;
}

}  // namespace dalle2
