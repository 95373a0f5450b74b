// SPDX-License-Identifier: MIT
#include "run/init/first_recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/text.h"

namespace dalle2 {
namespace {

/// What differs between the kinds; of two numbers, the second is for a GPU. They are near those of
/// the measured configs (stamps.json, text_clip.json, text_prior.json, stamps_vae.json).
struct KindRow {
  int64_t worth;  ///< updates for 100 samples or fewer; others by the square root
  int64_t most_updates[2], batch_size[2];
  int64_t batches_of_pass;  ///< a smaller set gets a smaller batch
  int64_t dim[2];
  double lr[2];
};

constexpr KindRow kRows[] = {  // in the order of FirstKind
    {3'600, {10'000, 100'000}, {16, 64}, 1, {16, 64}, {1e-3, 3e-4}},
    {400, {10'000, 100'000}, {128, 1024}, 4, {0, 0}, {5e-4, 2e-4}},
    {1'500, {5'000, 100'000}, {16, 32}, 1, {32, 64}, {1e-3, 3e-4}},
    {150, {2'000, 50'000}, {128, 512}, 8, {0, 0}, {1e-3, 5e-4}}};

/// A power of two from 16 up, which nearly all pictures have, if 16 will do.
int64_t first_side(const RecipeInput& input) {
  if (input.image_size) return *input.image_size;
  constexpr int64_t kSmallest = 16, kOnCpu = 32, kOnGpu = 64;
  int64_t side = kSmallest;
  while (side < (input.gpu ? kOnGpu : kOnCpu) && 2 * side <= input.short_side) side *= 2;
  return side;
}

/// The updates become those that the epochs really have.
void set_epochs(FirstRecipe& recipe) {
  constexpr int64_t kEpochs = 20;  // so often a run validates, saves and draws
  const FirstKind kind = recipe.input.kind;
  const int64_t of_update = recipe.batch_size * recipe.input.processes;
  const int64_t of_pass = (recipe.input.samples + of_update - 1) / of_update;
  int64_t of_epoch = recipe.updates < kEpochs ? recipe.updates : recipe.updates / kEpochs;
  // A batch of a CLIP must not hold a pair twice, as one of samples drawn without end may.
  recipe.resample = kind == FirstKind::kDecoder && of_epoch > of_pass;
  const bool may_end_early = kind == FirstKind::kDecoder || kind == FirstKind::kClip;
  if (recipe.resample || (may_end_early && of_epoch < of_pass)) {
    recipe.epoch_samples = of_epoch * of_update;
  } else {
    of_epoch = of_pass;
  }
  recipe.epochs = (recipe.updates + of_epoch - 1) / of_epoch;
  if (kind != FirstKind::kVae) recipe.updates = recipe.epochs * of_epoch;
}

}  // namespace

FirstRecipe recipe_for(const RecipeInput& input) {
  const KindRow& row = kRows[static_cast<size_t>(input.kind)];
  const int device = input.gpu ? 1 : 0;
  FirstRecipe recipe{
      .input = input, .side = first_side(input), .dim = row.dim[device], .lr = row.lr[device]};
  recipe.input.samples = std::max<int64_t>(input.samples, 1);
  constexpr int64_t kLeastBatch = 16;
  const int64_t of_batch = input.samples / input.processes / row.batches_of_pass;
  const auto fits = std::bit_floor(static_cast<uint64_t>(std::max(of_batch, kLeastBatch)));
  recipe.batch_size = std::min(row.batch_size[device], static_cast<int64_t>(fits));
  constexpr double kHundred = 100;  // both of samples, and what updates are rounded to
  const double root = std::sqrt(static_cast<double>(input.samples) / kHundred);
  const double worth = static_cast<double>(row.worth) * std::max(root, 1.0);
  recipe.wanted_updates = static_cast<int64_t>(std::ceil(worth / kHundred) * kHundred);
  recipe.updates =
      input.updates.value_or(std::min(recipe.wanted_updates, row.most_updates[device]));
  constexpr int64_t kCostOfWidth = 4;  // of an update of twice the width, at most
  if (recipe.dim > 0 && recipe.updates >= kCostOfWidth * recipe.wanted_updates) {
    recipe.dim *= 2;
    recipe.updates /= kCostOfWidth;
  }
  set_epochs(recipe);
  constexpr int64_t kTwentieth = 20, kMostWarmup = 1000;
  recipe.warmup_steps = std::clamp<int64_t>(recipe.updates / kTwentieth, 1, kMostWarmup);
  // The average reaches over about the last tenth of the run.
  constexpr double kParts = 10, kDigits = 1e4;
  const double beta = 1 - kParts / static_cast<double>(recipe.updates);
  recipe.ema_beta = std::clamp(std::round(beta * kDigits) / kDigits, 0.9, 0.9999);
  return recipe;
}

std::string train_text(const FirstRecipe& recipe) {
  const FirstKind kind = recipe.input.kind;
  std::string text = kind == FirstKind::kVae
                         ? fmt::format("    \"num_train_steps\": {},\n", recipe.updates)
                         : fmt::format("    \"epochs\": {},\n", recipe.epochs);
  if (recipe.epoch_samples)
    text += fmt::format("    \"epoch_samples\": {},\n", *recipe.epoch_samples);
  if (kind == FirstKind::kDecoder || kind == FirstKind::kClip)
    text += "    \"validation_samples\": 1024,      // at most\n";
  text += fmt::format(
      "    \"lr\": {},\n    \"warmup_steps\": {},\n    \"cosine_decay_max_steps\": {},   // all updates of the run\n",
      recipe.lr,
      recipe.warmup_steps,
      recipe.updates);
  if (kind == FirstKind::kClip) return text;
  return text +
         fmt::format(
             "    \"ema_beta\": {}, \"ema_update_after_step\": 0, \"ema_update_every\": 1,\n",
             recipe.ema_beta);
}

std::string batch_text(const FirstRecipe& recipe) {
  std::string text = fmt::format("    \"batch_size\": {},\n", recipe.batch_size);
  constexpr int64_t kBuffer = 200;  // encoded pictures in memory
  if (recipe.resample) {
    text += fmt::format(
        "    \"shuffle_train\": false, \"resample_train\": true, \"shuffle_buffer\": {},\n",
        std::min(recipe.input.samples, kBuffer));
  }
  return text;
}

std::vector<std::string> describe(const FirstRecipe& recipe) {
  const int64_t samples = recipe.input.samples;
  const int64_t of_update = recipe.batch_size * recipe.input.processes;
  const double passes =
      static_cast<double>(recipe.updates * of_update) / static_cast<double>(samples);
  std::vector<std::string> lines = {fmt::format("{} of {}: each of {} for training about {} times",
                                                counted(recipe.updates, "update"),
                                                counted(of_update, "sample"),
                                                with_commas(samples),
                                                short_number(passes, /*digits=*/2))};
  constexpr int64_t kFew = 200, kNoise = 2'000;
  if (samples < kFew)
    lines.push_back(
        "so few samples are learned by heart: for new results, add some hundreds of the same kind");
  if (recipe.updates < recipe.wanted_updates) {
    const bool is_noise = recipe.input.kind == FirstKind::kDecoder && recipe.updates < kNoise;
    lines.push_back(fmt::format(
        "{} updates would be better{}: raise /train/{} and /train/cosine_decay_max_steps, or give more --minutes",
        with_commas(recipe.wanted_updates),
        is_noise ? ", so few give noise" : "",
        recipe.input.kind == FirstKind::kVae ? "num_train_steps" : "epochs"));
  }
  return lines;
}

}  // namespace dalle2
