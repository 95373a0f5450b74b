// SPDX-License-Identifier: MIT
// The page of a repository on the Hugging Face hub: README.md.
#pragma once

#include <string>
#include <vector>

#include "config/shared/checkpoint_places_config.h"
#include "tracker/log/record.h"

namespace dalle2 {

/// Its name in the repository: "samples/110_Test_Samples_0.png".
std::string card_name_of(const StoredImage& picture);

struct CardFacts {
  std::string repo;           ///< owner/name
  std::string file;           ///< the checkpoint's name in it; empty: each save has another
  std::string revision = {};  ///< a branch; empty: the default one
  SaveType save_type = SaveType::checkpoint;
  std::string config;                      ///< JSON, with its defaults, without secrets
  std::vector<StoredImage> pictures = {};  ///< with whole paths
};

/// What was trained, by which config, how to draw from it, and samples: Markdown with the metadata
/// that the hub reads.
std::string model_card(const CardFacts& facts);

}  // namespace dalle2
