// SPDX-License-Identifier: MIT
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/shards/captions.h"
#include "data/shards/shards.h"
#include "io/text/clip_tokenizer.h"
#include "io/text/clip_vocabulary.h"
#include "run/clip/clip_run.h"
#include "run/commands/first_config.h"

namespace dalle2 {
namespace {

constexpr int64_t kVocabulary = 4096;
constexpr int64_t kBatchSize = 64, kEpochs = 20;

/// A tenth of the run's updates, at most 100.
int64_t first_warmup(const ShardSurvey& survey, int64_t processes) {
  constexpr int64_t kMost = 100, kTenth = 10;
  const int64_t samples = survey.samples * survey.count / std::max<int64_t>(survey.looked_at, 1);
  const int64_t of_update = kBatchSize * std::max<int64_t>(processes, 1);
  const int64_t updates = (samples + of_update - 1) / of_update * kEpochs;
  return std::clamp<int64_t>(updates / kTenth, 1, kMost);
}

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
  return std::min(kVocabulary, least + (most - least) / 2);
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
  const int64_t side = first_side(command, survey);
  std::vector<std::string> found = of_smaller_pictures(survey, side);
  found.insert(found.begin(), describe(survey));
  return {.text = fmt::format(R"({{
  "clip": {{
    "embed_dim": 128,
    "vision_cfg": {{"layers": 6, "width": 192, "head_width": 64, "patch_size": {}, "image_size": {}}},
    "text_cfg": {{"context_length": 32, "width": 128, "heads": 2, "layers": 4}},
    "tokenizer": {{"train": {}}}       // a vocabulary of the captions
  }},
  "data": {{
{}    "batch_size": {},
    "splits": {},                   // shares of the shards
    "preprocessing": {{
      "RandomResizedCrop": {{"size": {}, "scale": [0.9, 1.0], "interpolation": "bicubic"}},
      "ToTensor": true
    }}
  }},
  "train": {{"epochs": {}, "lr": 5e-4, "warmup_steps": {}, "device": "{}"}},
)",
                              side / kPatches,
                              side,
                              first_vocabulary(survey),
                              survey.keys,
                              kBatchSize,
                              first_splits(survey, command.processes),
                              side,
                              kEpochs,
                              first_warmup(survey, command.processes),
                              first_device()) +
                  tracker_text(command, /*best=*/true),
          .found = std::move(found)};
}

}  // namespace dalle2
