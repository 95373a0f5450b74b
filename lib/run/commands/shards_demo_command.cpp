// SPDX-License-Identifier: MIT
#include <cstdio>

#include "base/log.h"
#include "base/text.h"
#include "io/demo/demo_images.h"
#include "io/files/folder_names.h"
#include "run/commands.h"

namespace dalle2 {

void run_shards_demo(const ShardsDemoCommand& command) {
  const DemoShardReport report = write_demo_shards(
      {.out = command.out_folder,
       .num = command.num,
       .image_side = static_cast<int>(command.image_side),
       .seed = command.seed,
       .overwrite = command.overwrite},
      [](int64_t done, int64_t total) {
        log_live(fmt::format("{} of {}", with_commas(done), counted(total, "picture")));
      });
  log_live("");
  if (!report.removed.empty()) std::printf("removed: %s\n", short_list(report.removed).c_str());
  std::printf("%s in %s: %s/{}.tar, embeddings in %s/img_emb\n",
              counted(report.pictures, "picture").c_str(),
              counted(report.shards, "shard").c_str(),
              command.out_folder.c_str(),
              command.out_folder.c_str());
  std::printf("%ld combinations that no shard holds: %s/heldout, their truth in truth.json\n",
              static_cast<long>(report.held_out),
              command.out_folder.c_str());
}

}  // namespace dalle2
