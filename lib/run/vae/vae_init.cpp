// SPDX-License-Identifier: MIT
#include <algorithm>

#include "base/text.h"
#include "data/pictures/image_folder.h"
#include "run/init/first_config.h"
#include "run/vae/vae_run.h"

namespace dalle2 {

FirstConfig vae_first_config(const InitCommand& command) {
  constexpr int64_t kSide = 64, kLayers = 2;
  VaeDataConfig data;
  data.folder = command.data;
  data.image_size = command.image_size.value_or(kSide);
  const ImageFolder pictures(data, /*channels=*/3, /*seed=*/0);
  const PictureTally tally = pictures.first_pictures();
  const FirstRecipe recipe = recipe_for({.kind = FirstKind::kVae,
                                         .samples = pictures.rows("train"),
                                         .short_side = data.image_size,
                                         .gpu = first_device() != "cpu",
                                         .processes = command.processes,
                                         .image_size = data.image_size,
                                         .updates = command.updates});
  constexpr int64_t kGrids = 20, kSaves = 5;  // of a run
  std::vector<std::string> found = {fmt::format("{} in {}, {} for training",
                                                counted(pictures.files(), "picture"),
                                                command.data,
                                                with_commas(pictures.rows("train")))};
  for (std::string& line : tally.describe()) found.push_back(std::move(line));
  return {.text = fmt::format(R"({{
  "vae": {{
    "dim": {},
    "layers": {},                         // each halves the side: {} px become {} px of codes
    "lookup_free_quantization": false,
    "codebook_size": 1024,
    "use_vgg_and_gan": false,           // true is sharper, and takes "vgg_path" in "train"
    "l2_recon_loss": true,
    "quantizer_loss_without_gan": true
  }},
  "data": {{
    "folder": {},                       // pictures, those in tar shards too
    "image_size": {},
{}{}    "preprocessing": {{               // "RandomHorizontalFlip": true between these two doubles the pictures
      "Resize": {{"size": {}}},
      "CenterCrop": {{"size": {}}},
      "ToTensor": true
    }}
  }},
  "train": {{
{}    "device": "{}",
    "save_results_every": {},
    "save_model_every": {}
  }},
)",
                              recipe.dim,
                              kLayers,
                              recipe.side,
                              recipe.side >> kLayers,
                              json_text(command.data),
                              recipe.side,
                              batch_text(recipe),
                              reading_text(tally),
                              recipe.side,
                              recipe.side,
                              train_text(recipe),
                              first_device(),
                              std::max<int64_t>(recipe.updates / kGrids, 1),
                              std::max<int64_t>(recipe.updates / kSaves, 1)) +
                  tracker_text(command, /*best=*/false),
          .found = std::move(found),
          .recipe = recipe};
}

}  // namespace dalle2
