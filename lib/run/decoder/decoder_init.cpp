// SPDX-License-Identifier: MIT
#include <filesystem>

#include "base/text.h"
#include "data/embeddings/embeddings.h"
#include "run/decoder/decoder_run.h"
#include "run/init/first_config.h"

namespace dalle2 {
FirstConfig decoder_first_config(const InitCommand& command) {
  const ShardSurvey survey = survey_shards(command.data);
  const FirstRecipe recipe = first_recipe(FirstKind::kDecoder, command, survey);
  FirstConfig first{.found = describe(survey), .recipe = recipe};
  std::string folder = find_embeddings(command.data, {"img_emb", "embeddings"});
  if (const auto manifest = embed_manifest_of(folder); manifest && survey.embed_width == 0) {
    first.found.push_back(fmt::format(
        "{}, which `shards embed` made: a decoder reads these embeddings from the shards beside them. For that, "
        "use: dalle2-train init {}",
        folder,
        std::filesystem::path(*manifest)
            .parent_path()
            .lexically_relative(std::filesystem::current_path())
            .string()));
    folder.clear();
  }
  constexpr const char* kWidth = R"(, "image_embed_dim": {}, "num_image_tokens": 4)";
  std::string condition = R"("unconditional": true,        // no embeddings were found)", width,
              url;
  if (survey.embed_width > 0) {
    condition = R"("unconditional": false,       // conditioned on image embeddings)";
    width = fmt::format(kWidth, survey.embed_width);
    url = "    \"embeddings_in_tar\": true,     // KEY.img_emb.npy beside each picture\n";
    first.found.push_back(
        fmt::format("image embeddings of width {} in the shards", survey.embed_width));
  } else if (!folder.empty()) {
    const EmbeddingFolder embeddings(folder, "image", survey.width);
    const int64_t dim = embeddings.row_shape().empty() ? 0 : embeddings.row_shape().back();
    condition = R"("unconditional": false,       // conditioned on image embeddings)";
    width = fmt::format(kWidth, dim);
    url = fmt::format("    \"img_embeddings_url\": {},\n", json_text(folder));
    if (survey.pictures > 0)
      url += "    \"folder_order\": \"in_order\",   // rows follow the paths\n";
    first.found.push_back(
        fmt::format("image embeddings of width {} in {}, {}", dim, folder, embeddings.describe()));
  }
  for (std::string& line : of_smaller_pictures(survey, recipe.side)) first.found.push_back(line);
  first.text = fmt::format(R"({{
  "decoder": {{
    {}
    "unets": [{{"dim": {}, "dim_mults": [1, 2, 4], "num_resnet_blocks": {}, "num_time_tokens": 1{}}}],
    "image_size": {},               // pixels; "image_sizes" for a cascade, one a unet
    "timesteps": 1000,
    "sample_timesteps": [50],       // DDIM steps when drawing; null for all 1000
    "learned_variance": false,
    "predict_v": true
  }},
  "data": {{
{}{}{}{}    "splits": {},                   // shares of the shards
    "preprocessing": {{               // torchvision's transforms, in this order
      {},
      // "RandomHorizontalFlip": true,   // doubles the pictures; not for letters, clocks, left and right hands
      "ToTensor": true
    }}
  }},
  "train": {{
{}    "n_sample_images": 8,
    "device": "{}"
  }},
  "evaluate": {{}},
)",
                           condition,
                           recipe.dim,
                           recipe.dim > 32 ? 2 : 1,
                           width,
                           recipe.side,
                           survey.keys,
                           url,
                           picture_text(survey, recipe),
                           batch_text(recipe),
                           first_splits(survey, command.processes),
                           crop_text(survey, recipe.side, /*least=*/0.8),
                           train_text(recipe),
                           first_device()) +
               tracker_text(command, /*best=*/true);
  return first;
}

}  // namespace dalle2
