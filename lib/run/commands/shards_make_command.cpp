// SPDX-License-Identifier: MIT
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
#include "run/commands/out_folder.h"

namespace dalle2 {

ExitCode run_shards_make(const ShardsMakeCommand& command) {
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
  const PackReport report =
      pack_folder(command.from_folder,
                  command.out_folder,
                  {.samples_per_shard = command.per_shard,
                   .white_ground = command.white_ground,
                   .need_captions = command.need_captions,
                   .first_line_only = command.first_line_only,
                   .overwrite = command.overwrite,
                   .hold_out = [&] { return hold_shards_folder(command.out_folder); }},
                  [](const PackProgress& progress) {
                    log_live(fmt::format("{} of {}, {}",
                                         with_commas(progress.pictures),
                                         counted(progress.total, "picture"),
                                         progress.shard));
                  });
  log_live("");
  for (const std::string& line : describe_pack(report)) std::printf("%s\n", line.c_str());
  if (!report.stopped && report.packed == 0) {
    throw DataError("{}: not one usable picture, so no shard was written", command.from_folder);
  }
  if (!report.stopped) std::printf("next: dalle2-train init %s\n", command.out_folder.c_str());
  return report.stopped ? ExitCode::kStopped : ExitCode::kDone;
}

}  // namespace dalle2
