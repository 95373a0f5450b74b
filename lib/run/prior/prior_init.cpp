// SPDX-License-Identifier: MIT
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/embeddings/embedding_table.h"
#include "run/init/first_config.h"
#include "run/prior/prior_run.h"

namespace dalle2 {
namespace {

struct Rows {
  std::string folder;
  int64_t count = 0, width = 0;
};

Rows rows_of(const InitCommand& command,
             const std::string& what,
             const std::vector<std::string>& names) {
  const std::string folder = find_embeddings(command.data, names);
  if (folder.empty()) {
    throw DataError(
        "{}: no folder {} with .npy files of {} embeddings was found in it or beside it\n  `dalle2-train shards "
        "embed` makes them of captioned shards. For another kind of run, give --kind.",
        command.data,
        fmt::join(names, " or "),
        what);
  }
  const EmbeddingTable table(folder, folder, {0});
  return {.folder = folder, .count = table.rows(), .width = table.row_shape().back()};
}

}  // namespace

FirstConfig prior_first_config(const InitCommand& command) {
  const Rows image = rows_of(command, "image", {"img_emb", "images"});
  const Rows text = rows_of(command, "text", {"text_emb", "texts"});
  if (image.count != text.count || image.width != text.width) {
    throw DataError(
        "{} has {} of width {}, {} has {} of width {}: a prior needs pairs of one width",
        image.folder,
        counted(image.count, "row"),
        image.width,
        text.folder,
        counted(text.count, "row"),
        text.width);
  }
  constexpr int64_t kHeadWidth = 64, kDepth = 6;
  constexpr double kTrain = 0.8;
  const FirstRecipe recipe =
      recipe_for({.kind = FirstKind::kPrior,
                  .samples = static_cast<int64_t>(kTrain * static_cast<double>(image.count)),
                  .gpu = first_device() != "cpu",
                  .processes = command.processes,
                  .updates = command.updates});
  return {.text = fmt::format(R"({{
  "prior": {{
    "net": {{"dim": {}, "depth": {}, "dim_head": {}, "heads": {}, "max_text_len": 1}},
    "image_embed_dim": {},
    "condition_on_text_encodings": false,   // true takes "text_encodings_url", and "max_text_len" 77
    "timesteps": 1000,
    "sample_timesteps": 64
  }},
  "data": {{
    "image_url": {},
    "text_url": {},
{}    "eval_every_seconds": 60,
    "splits": {{"train": {}, "val": 0.1, "test": 0.1}}
  }},
  "train": {{
{}    "device": "{}"
  }},
)",
                              image.width,
                              kDepth,
                              kHeadWidth,
                              std::max<int64_t>(1, image.width / kHeadWidth),
                              image.width,
                              json_text(image.folder),
                              json_text(text.folder),
                              batch_text(recipe),
                              kTrain,
                              train_text(recipe),
                              first_device()) +
                  tracker_text(command, /*best=*/true),
          .found = {fmt::format("{} of image and text embeddings of width {} in {} and {}",
                                counted(image.count, "pair"),
                                image.width,
                                image.folder,
                                text.folder)},
          .recipe = recipe};
}

}  // namespace dalle2
