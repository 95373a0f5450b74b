// SPDX-License-Identifier: MIT
// How long a first run trains, and with what: by the number of samples, so that a small set ends
// with more than noise, and a large one in a bearable time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

enum class FirstKind { kDecoder, kPrior, kVae, kClip };

struct RecipeInput {
  FirstKind kind = FirstKind::kDecoder;
  int64_t samples = 0;     ///< for training
  int64_t short_side = 0;  ///< that nearly all pictures have, pixels
  bool gpu = false;
  int64_t processes = 1;
  std::optional<int64_t> image_size = {};  ///< that was asked for
  std::optional<int64_t> updates = {};     ///< that fit into the time asked for
};

struct FirstRecipe {
  RecipeInput input = {};
  int64_t side = 0;        ///< pixels
  int64_t dim = 0;         ///< width of a decoder's or VAE's first level
  int64_t batch_size = 0;  ///< of a process
  int64_t updates = 0;
  int64_t wanted_updates = 0;  ///< that so many samples are worth, however long they take
  int64_t epochs = 0;
  std::optional<int64_t> epoch_samples = {};  ///< where an epoch is not one pass
  bool resample = false;  ///< an epoch is more than one pass: samples are drawn without end
  int64_t warmup_steps = 0;
  double lr = 0, ema_beta = 0;
};

FirstRecipe recipe_for(const RecipeInput& input);

/// Of the section `train`: length, learning rate, average. Lines of JSON that end in commas.
std::string train_text(const FirstRecipe& recipe);
/// Of the section `data`: the batch, and how samples are drawn. Likewise.
std::string batch_text(const FirstRecipe& recipe);
/// "10,000 updates of 16 samples: each of 640 for training about 250 times", and what to expect.
std::vector<std::string> describe(const FirstRecipe& recipe);

}  // namespace dalle2
