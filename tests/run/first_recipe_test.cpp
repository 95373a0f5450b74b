// SPDX-License-Identifier: MIT
#include "run/init/first_config.h"

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "data/shards/shards.h"
#include "support/message_of.h"

using namespace dalle2;
using Catch::Matchers::Contains;

namespace {

struct Case {
  RecipeInput input;
  std::string
      recipe;  ///< side, dim, batch, updates, wanted, epochs, samples of an epoch, warm-up, beta
};

std::string text_of(const FirstRecipe& recipe) {
  return fmt::format("{} px, dim {}, {} x {} of {}, {} epochs of {}{}, warm-up {}, beta {}",
                     recipe.side,
                     recipe.dim,
                     recipe.updates,
                     recipe.batch_size,
                     recipe.wanted_updates,
                     recipe.epochs,
                     recipe.epoch_samples.value_or(0),
                     recipe.resample ? " drawn" : "",
                     recipe.warmup_steps,
                     recipe.ema_beta);
}

}  // namespace

TEST_CASE("The first recipe follows from the number of samples, their size and the device") {
  constexpr auto decoder = FirstKind::kDecoder, prior = FirstKind::kPrior, vae = FirstKind::kVae,
                 clip = FirstKind::kClip;
  const std::vector<Case> cases = {
      {{.kind = decoder, .samples = 22, .short_side = 600},
       "32 px, dim 16, 3600 x 16 of 3600, 20 epochs of 2880 drawn, warm-up 180, beta 0.9972"},
      {{.kind = decoder, .samples = 640, .short_side = 80},
       "32 px, dim 16, 9200 x 16 of 9200, 20 epochs of 7360 drawn, warm-up 460, beta 0.9989"},
      {{.kind = decoder, .samples = 640, .short_side = 20},
       "16 px, dim 16, 9200 x 16 of 9200, 20 epochs of 7360 drawn, warm-up 460, beta 0.9989"},
      {{.kind = decoder, .samples = 800'000, .short_side = 256, .gpu = true},
       "64 px, dim 64, 100000 x 64 of 322000, 20 epochs of 320000, warm-up 1000, beta 0.9999"},
      {{.kind = decoder, .samples = 800'000, .short_side = 256, .gpu = true, .processes = 8},
       "64 px, dim 64, 100000 x 64 of 322000, 20 epochs of 2560000 drawn, warm-up 1000, beta 0.9999"},
      {{.kind = decoder, .samples = 640, .short_side = 80, .image_size = 128},
       "128 px, dim 16, 9200 x 16 of 9200, 20 epochs of 7360 drawn, warm-up 460, beta 0.9989"},
      {{.kind = decoder, .samples = 640, .short_side = 80, .updates = 1'000},
       "32 px, dim 16, 1000 x 16 of 9200, 20 epochs of 800 drawn, warm-up 50, beta 0.99"},
      {{.kind = decoder, .samples = 640, .short_side = 80, .updates = 80'000},
       "32 px, dim 32, 20000 x 16 of 9200, 20 epochs of 16000 drawn, warm-up 1000, beta 0.9995"},
      {{.kind = decoder, .samples = 800'000, .short_side = 256},
       "32 px, dim 16, 10000 x 16 of 322000, 20 epochs of 8000, warm-up 500, beta 0.999"},
      {{.kind = clip, .samples = 22, .short_side = 600},
       "32 px, dim 0, 200 x 16 of 200, 100 epochs of 0, warm-up 10, beta 0.95"},
      {{.kind = clip, .samples = 800'000, .short_side = 256},
       "32 px, dim 0, 2000 x 128 of 13500, 20 epochs of 12800, warm-up 100, beta 0.995"},
      {{.kind = clip, .samples = 800'000, .short_side = 256, .gpu = true},
       "64 px, dim 0, 13500 x 512 of 13500, 20 epochs of 345600, warm-up 675, beta 0.9993"},
      {{.kind = prior, .samples = 4'800},
       "16 px, dim 0, 2812 x 128 of 2800, 74 epochs of 0, warm-up 140, beta 0.9964"},
      {{.kind = prior, .samples = 800'000, .gpu = true},
       "16 px, dim 0, 35972 x 1024 of 35800, 46 epochs of 0, warm-up 1000, beta 0.9997"},
      {{.kind = vae, .samples = 760, .short_side = 64},
       "32 px, dim 32, 4200 x 16 of 4200, 88 epochs of 0, warm-up 210, beta 0.9976"},
      {{.kind = vae, .samples = 950'000, .short_side = 64, .gpu = true},
       "64 px, dim 64, 100000 x 32 of 146300, 4 epochs of 0, warm-up 1000, beta 0.9999"},
  };
  for (const Case& each : cases) CHECK(text_of(recipe_for(each.input)) == each.recipe);
}

TEST_CASE("A short run validates and draws as often as fits into its time") {
  for (const int64_t epochs : {1, 2, 3}) {
    const FirstRecipe recipe =
        recipe_for({.samples = 3'000, .short_side = 32, .updates = 70, .epochs = epochs});
    CHECK(recipe.epochs == epochs);
  }
}

TEST_CASE("A run lasts as long as its schedule, and its average reaches over a tenth of it") {
  for (const auto kind :
       {FirstKind::kDecoder, FirstKind::kPrior, FirstKind::kVae, FirstKind::kClip}) {
    for (const int64_t samples : {1, 15, 16, 17, 100, 9'999, 3'000'000}) {
      for (const std::optional<int64_t> updates :
           {std::optional<int64_t>(), {1}, {333}, {70'001}}) {
        const FirstRecipe recipe =
            recipe_for({.kind = kind, .samples = samples, .short_side = 32, .updates = updates});
        CAPTURE(static_cast<int>(kind), samples, recipe.updates);
        const int64_t of_epoch = recipe.epoch_samples.value_or(samples);
        const int64_t updates_of_epoch = (of_epoch + recipe.batch_size - 1) / recipe.batch_size;
        if (kind != FirstKind::kVae) CHECK(recipe.epochs * updates_of_epoch == recipe.updates);
        CHECK(recipe.warmup_steps >= 1);
        CHECK(recipe.warmup_steps <= recipe.updates);
        CHECK(recipe.ema_beta >= 0.9);
        CHECK(recipe.ema_beta <= 0.9999);
        // A CLIP must not see a pair twice in a batch.
        CHECK((kind == FirstKind::kDecoder || !recipe.resample));
        if (!recipe.resample) CHECK(of_epoch <= samples);
      }
    }
  }
}

TEST_CASE("A first run says what to expect of so few samples and so few updates") {
  const auto said = [](RecipeInput input) {
    return fmt::format("{}", fmt::join(describe(recipe_for(input)), "\n"));
  };
  CHECK_THAT(said({.samples = 22, .short_side = 600}),
             Contains("so few samples are learned by heart"));
  CHECK_THAT(said({.samples = 640, .updates = 50}), Contains("so few give noise"));
  const std::string many = said({.kind = FirstKind::kVae, .samples = 1'000'000, .short_side = 64});
  CHECK_THAT(many, Contains("raise /train/num_train_steps"));
  CHECK_THAT(many, !Contains("by heart"));
  CHECK_THAT(said({.kind = FirstKind::kClip, .samples = 9'000, .short_side = 64}),
             !Contains("noise"));
}

TEST_CASE("Samples of unequal shards are counted in the shards of the training split") {
  const std::vector<std::array<int64_t, 2>> shards = {{1, 0}, {10, 2}, {100, 30}, {1'000, 400}};
  const ShardSurvey survey{.dealt = 4, .samples = 1'111, .of_shards = shards, .short_sides = {64}};
  std::array<int64_t, 2> expected = {};
  const std::vector<uint32_t> train = split_positions(first_splits(4), 4, /*seed=*/0)->train;
  for (const uint32_t shard : train)
    for (const size_t i : {0, 1}) expected[i] += shards[shard][i];
  CHECK(first_recipe(FirstKind::kDecoder, {}, survey).input.samples == expected[0]);
  CHECK(first_recipe(FirstKind::kClip, {}, survey).input.samples == expected[1]);
}

namespace dalle2::test {
namespace {

std::string refusal(const std::string& command,
                    const OptionFacts& facts,
                    const std::string& where = "") {
  return message_of<ConfigError>([&] { check_options(command, facts, where); });
}

TEST_CASE("an option is refused by its row, with what it needs and what to do") {
  CHECK(refusal("sample", {{"--theta", true}}) ==
        "--theta: needs --from-text\n  Give what it needs, or leave --theta out.");
  CHECK(refusal("sample", {{"--checkpoint", true}, {"--pipeline", true}}) ==
        "--checkpoint: not with --pipeline\n  Leave --checkpoint out.");
  CHECK(refusal("convert", {{"--to", true}, {"--open-clip", true}}) ==
        "--to: not with --open-clip\n  Leave --to out. Convert twice.");
  CHECK(refusal("convert", {{"--lora-scale", true}}) ==
        "--lora-scale: needs --lora or --merge-lora\n  Give what it needs, or leave --lora-scale "
        "out.");
  CHECK(refusal("sample",
                {{"--theta", true}, {"--from-text", true}, {"--text", true}, {"--clip", true}}) ==
        "nothing was thrown");
  CHECK(refusal("inspect", {{"--theta", true}}) == "nothing was thrown");
}

TEST_CASE("a row waits for the facts that it hangs on") {
  OptionFacts facts = {{"--num", true}, {"--cond-scale", true}};
  CHECK(refusal("sample", facts) == "nothing was thrown");
  facts[kOnDecoder] = true;
  CHECK(refusal("sample", facts) == "nothing was thrown");
  facts[kUnconditional] = true;
  CHECK(refusal("sample", facts, " on m.pth, a decoder's file") ==
        "--cond-scale on m.pth, a decoder's file: not with an unconditional decoder\n  Leave "
        "--cond-scale out. --num says how many pictures to draw.");
  facts[kOnDecoder] = false;
  CHECK(refusal("sample", facts, " on m.pth, a prior's file") ==
        "--num on m.pth, a prior's file: needs a decoder as --checkpoint\n  Give what it needs, or "
        "leave --num out.");
  // A fact can ask for an option too.
  CHECK(refusal("sample", {{kVariesPicture, true}, {kTakesNoEncodings, false}}) ==
        "a picture to vary (--image with --clip): needs --text or a decoder that takes no text "
        "encodings\n  Give what it needs, or leave a picture to vary (--image with --clip) out.");
}

TEST_CASE("the help of an option ends with its row") {
  CHECK(rule_help({{"--a"}, {"--b", kOnPrior, "--c"}, {"--d"}}) ==
        "; needs --b, a prior as --checkpoint or --c; not with --d");
  CHECK(rule_help({{"--a"}, {"--b"}}) == "; needs --b");
}

}  // namespace
}  // namespace dalle2::test
