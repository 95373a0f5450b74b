// SPDX-License-Identifier: MIT
#include "base/error.h"
#include "run/clip/clip_run.h"
#include "run/commands/first_config.h"

namespace dalle2 {

FirstConfig clip_first_config(const InitCommand& command) {
  const ShardSurvey survey = survey_shards(command.data);
  if (survey.with_caption == 0) {
    throw DataError(
        "{}: no picture has a caption, and a CLIP learns from pairs\n"
        "  Put a .txt file of the same name beside each picture.",
        command.data);
  }
  constexpr int64_t kPatches = 8;  // a side
  const int64_t side = first_side(command, survey.narrowest);
  return {.text = fmt::format(R"({{
  "clip": {{
    "embed_dim": 128,
    "vision_cfg": {{"layers": 6, "width": 192, "head_width": 64, "patch_size": {}, "image_size": {}}},
    "text_cfg": {{"context_length": 32, "width": 128, "heads": 2, "layers": 4}},
    "tokenizer": {{"train": 4096}}       // a vocabulary of the captions
  }},
  "data": {{
{}    "batch_size": 64,
    "splits": {},                   // shares of the shards
    "preprocessing": {{
      "RandomResizedCrop": {{"size": {}, "scale": [0.9, 1.0], "interpolation": "bicubic"}},
      "ToTensor": true
    }}
  }},
  "train": {{"epochs": 20, "lr": 5e-4, "warmup_steps": 100, "device": "{}"}},
)",
                              side / kPatches,
                              side,
                              survey.keys,
                              first_splits(survey.dealt, command.processes),
                              side,
                              first_device()) +
                  tracker_text(command, /*best=*/true),
          .found = {describe(survey)}};
}

}  // namespace dalle2
