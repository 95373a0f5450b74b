// SPDX-License-Identifier: MIT
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/shards/captions.h"
#include "data/shards/shards.h"
#include "io/text/clip_tokenizer.h"
#include "io/text/clip_vocabulary.h"
#include "run/clip/clip_run.h"
#include "run/init/first_config.h"

namespace dalle2 {
namespace {

constexpr int64_t kVocabulary = 4096;
/// Tokens that the captions of a run will surely give: those of the shards that were looked at, less
/// a part, since some of these shards are not for training.
int64_t first_vocabulary(const ShardSurvey& survey) {
  ClipVocabularyTrainer trainer;
  for (const std::string& url : survey.urls) {
    try {
      const auto reader = open_shard(url);
      while (const auto sample = reader->next()) {
        const CaptionText caption = caption_of(*sample, CaptionReadConfig{}.caption_encoding);
        if (!caption.text.empty()) trainer.add(caption.text);
      }
    } catch (const DataError&) {  // what comes before the damage counts
    }
  }
  const int64_t least = ClipTokenizer::kLeastVocabSize;
  const int64_t most = ClipTokenizer(trainer.merges(2 * kVocabulary), "captions").vocab_size();
  return std::min(kVocabulary, least + std::max<int64_t>((most - least) / 2, 1));
}

}  // namespace

FirstConfig clip_first_config(const InitCommand& command) {
  const ShardSurvey survey = survey_shards(command.data);
  if (survey.with_caption == 0) {
    throw DataError(
        "{}: no picture has a caption, and a CLIP learns from pairs\n"
        "  Put a .txt file of the same name beside each picture.",
        command.data);
  }
  constexpr int64_t kPatches = 8;  // a side
  const FirstRecipe recipe = first_recipe(FirstKind::kClip, command, survey);
  std::vector<std::string> found = describe(survey);
  for (std::string& line : of_smaller_pictures(survey, recipe.side)) found.push_back(line);
  return {.text = fmt::format(R"({{
  "clip": {{
    "embed_dim": 128,
    "vision_cfg": {{"layers": 6, "width": 192, "head_width": 64, "patch_size": {}, "image_size": {}}},
    "text_cfg": {{"context_length": 32, "width": 128, "heads": 2, "layers": 4}},
    "tokenizer": {{"train": {}}}       // a vocabulary of the captions
  }},
  "data": {{
{}{}{}    "splits": {},                   // shares of the shards
    "preprocessing": {{
      {},
      "ToTensor": true
    }}
  }},
  "train": {{
{}    "wd": 0.1,
    "device": "{}"
  }},
)",
                              recipe.side / kPatches,
                              recipe.side,
                              first_vocabulary(survey),
                              survey.keys,
                              picture_text(survey, recipe),
                              batch_text(recipe),
                              first_splits(survey, command.processes),
                              crop_text(survey, recipe.side, /*least=*/0.9),
                              train_text(recipe),
                              first_device()) +
                  tracker_text(command, /*best=*/true),
          .found = std::move(found),
          .recipe = recipe};
}

}  // namespace dalle2
