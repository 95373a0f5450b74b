// SPDX-License-Identifier: MIT
#include "base/text.h"
#include "data/pictures/image_folder.h"
#include "run/commands/first_config.h"
#include "run/vae/vae_run.h"

namespace dalle2 {

FirstConfig vae_first_config(const InitCommand& command) {
  constexpr int64_t kSide = 64, kLayers = 2;
  const int64_t side = command.image_size.value_or(kSide);
  VaeDataConfig data;
  data.folder = command.data;
  data.image_size = side;
  const ImageFolder pictures(data, /*channels=*/3, /*seed=*/0);
  return {.text = fmt::format(R"({{
  "vae": {{
    "dim": 32,
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
    "batch_size": 16
  }},
  "train": {{
    "num_train_steps": 5000,
    "lr": 1e-3,
    "warmup_steps": 50,
    "device": "{}",
    "save_results_every": 250,
    "save_model_every": 1000
  }},
)",
                              kLayers,
                              side,
                              side >> kLayers,
                              json_text(command.data),
                              side,
                              first_device()) +
                  tracker_text(command, /*best=*/false),
          .found = {fmt::format("{} in {}, {} for training",
                                counted(pictures.files(), "picture"),
                                command.data,
                                with_commas(pictures.rows("train")))}};
}

}  // namespace dalle2
