// SPDX-License-Identifier: MIT
#include "config/shared/train_rules.h"

#include <catch2/catch.hpp>

#include "config/decoder/decoder_run_config.h"

namespace dalle2 {
namespace {

using Lines = std::vector<std::string>;

/// The findings as lines, warnings behind errors.
Lines lines_of(const Faults& faults) {
  Lines lines;
  for (const Fault& fault : faults.errors()) lines.push_back("error " + fault_line(fault));
  for (const Fault& fault : faults.warnings()) lines.push_back("warning " + fault_line(fault));
  return lines;
}

/// What the rules say of the defaults of a decoder with a change.
template <class Change>
Lines rules_of(Change change) {
  DecoderTrainConfig train;
  change(train);
  Faults faults;
  check_shared_options(train, DecoderTrainConfig(), faults);
  return lines_of(faults);
}

constexpr const char* kEmaOff =
    "warning /train/use_ema: is false: the keys train.ema, train.ema_* and "
    "train.update_model_with_ema_every have no effect";
constexpr const char* kWidthsOff =
    "error /train/post_hoc_ema/save_every_n_steps: must be given for the widths to have an effect, "
    "got null";
constexpr const char* kLoraOff =
    "warning /train/lora/rank: is 0: the other keys of lora have no effect, and the whole network "
    "is trained";
constexpr const char* kRollBackOnly =
    "warning /train/non_finite/action: lr_factor and max_roll_backs have an effect with "
    "\"roll_back\" only, got \"stop\"";

}  // namespace

TEST_CASE("the defaults break no rule of training") {
  CHECK(rules_of([](auto&) {}) == Lines{});
}

TEST_CASE("without an average its options have no effect") {
  CHECK(rules_of([](auto& t) { t.use_ema = false; }) == Lines{});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.ema_beta = 0.5; }) == Lines{kEmaOff});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.ema.decay = 0.5; }) == Lines{kEmaOff});
  CHECK(rules_of([](auto& t) { t.use_ema = false, t.update_model_with_ema_every = 5; }) ==
        Lines{kEmaOff});
}

TEST_CASE("each kind of average refuses or names the options of the other") {
  const Lines needs_kind = {
      "error /train/ema/kind: must be \"diffusers\" for the other keys of ema to have an effect, "
      "got \"ema_pytorch\", which has train.ema_beta, train.ema_update_after_step, ..."};
  CHECK(rules_of([](auto& t) { t.ema.decay = 0.5; }) == needs_kind);
  CHECK(rules_of([](auto& t) { t.ema.offload = true; }) == needs_kind);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers; }) == Lines{});
  CHECK(rules_of(
            [](auto& t) { t.ema.kind = EmaKind::diffusers, t.update_model_with_ema_every = 10; }) ==
        Lines{"error /train/update_model_with_ema_every: must be null with ema.kind \"diffusers\", "
              "got 10; only \"ema_pytorch\" copies the average back"});
  const Lines shaped = {
      "warning /train/ema/kind: the keys train.ema_* have no effect with \"diffusers\": "
      "train.ema.decay, train.ema.update_after_step, ... take their place"};
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_beta = 0.5; }) == shaped);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_update_after_step = 1; }) ==
        shaped);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_update_every = 1; }) ==
        shaped);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_inv_gamma = 2; }) == shaped);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_power = 2; }) == shaped);
  CHECK(rules_of([](auto& t) { t.ema.kind = EmaKind::diffusers, t.ema_min_value = 0.5; }) ==
        shaped);
}

TEST_CASE("two averages after training have two widths, and are saved") {
  CHECK(rules_of([](auto& t) { t.post_hoc_ema.save_every_n_steps = 5; }) == Lines{});
  CHECK(rules_of([](auto& t) { t.post_hoc_ema.sigmas = {0.05, 0.2}; }) == Lines{kWidthsOff});
  CHECK(rules_of([](auto& t) {
          t.post_hoc_ema = {.save_every_n_steps = 5, .sigmas = {0.1, 0.1}};
        }) ==
        Lines{"error /train/post_hoc_ema/sigmas: must be two different widths, got 0.1 twice"});
}

TEST_CASE("without adapters nothing is frozen, and their options have no effect") {
  CHECK(rules_of([](auto& t) { t.lora.alpha = 4; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.targets = {"to_q"}; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.init = LoraInit::kaiming; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.dropout = 0.1; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.lora.train_bias = true; }) == Lines{kLoraOff});
  CHECK(rules_of([](auto& t) { t.frozen_dtype = FrozenDtype::bf16; }) ==
        Lines{"error /train/frozen_dtype: must be \"fp32\" without adapters, because then nothing "
              "is frozen; set train.lora.rank to train adapters"});
  CHECK(rules_of([](auto& t) {
          t.lora.rank = 4, t.lora.alpha = 4, t.frozen_dtype = FrozenDtype::bf16;
        }) == Lines{});
}

TEST_CASE("what switches nothing is told: amp beside a precision, roll-backs that never come") {
  CHECK(rules_of([](auto& t) { t.amp = true, t.mixed_precision = MixedPrecision::no; }) ==
        Lines{"warning /train/amp: has no effect: train.mixed_precision is \"no\""});
  CHECK(rules_of([](auto& t) { t.amp = true, t.mixed_precision = MixedPrecision::bf16; }) ==
        Lines{});
  CHECK(rules_of([](auto& t) { t.non_finite.lr_factor = 0.1; }) == Lines{kRollBackOnly});
  CHECK(rules_of([](auto& t) { t.non_finite.max_roll_backs = 1; }) == Lines{kRollBackOnly});
  CHECK(rules_of([](auto& t) {
          t.non_finite.action = NonFiniteAction::roll_back, t.non_finite.lr_factor = 0.1;
        }) == Lines{});
}

TEST_CASE("a saver of adapters is refused in a run without them, by its number") {
  DecoderTrainConfig train;
  TrackerConfig tracker;
  tracker.save = {LocalSaveConfig{}, LocalSaveConfig{}};
  std::get<LocalSaveConfig>(tracker.save[1]).save_type = SaveType::lora;
  Faults faults;
  check_savers(train, tracker, faults);
  CHECK(lines_of(faults) ==
        Lines{"error /tracker/save: saver 2 has save_type \"lora\", but this run trains no "
              "adapters: set train.lora.rank, or choose \"checkpoint\" or \"model\""});
  train.lora.rank = 2;
  Faults none;
  check_savers(train, tracker, none);
  CHECK(lines_of(none) == Lines{});
}

TEST_CASE("DREAM trains networks that predict the noise, and no others") {
  const NetworkName network{"unet 2", "decoder", "image"};
  const auto of = [&](bool enabled, Objective objective) {
    Faults faults;
    check_dream({.enabled = enabled}, objective, network, faults);
    return lines_of(faults);
  };
  CHECK(of(true, Objective::eps) == Lines{});
  CHECK(of(false, Objective::v) == Lines{});
  CHECK(of(true, Objective::v) ==
        Lines{"error /train/dream/enabled: DREAM has not been implemented for v-prediction: unet 2 "
              "predicts v; set predict_v and predict_x_start of the decoder to false for it, or "
              "dream.enabled to false"});
  CHECK(of(true, Objective::x_start) ==
        Lines{"error /train/dream/enabled: Unknown prediction type sample: unet 2 predicts the "
              "clean image; set predict_v and predict_x_start of the decoder to false for it, or "
              "dream.enabled to false"});
  Faults faults;
  check_loss_options({.enabled = false, .detail_preservation = 2}, faults);
  check_loss_options({.enabled = true, .detail_preservation = 2}, faults);
  CHECK(lines_of(faults) ==
        Lines{"warning /train/dream/enabled: is false: the other keys of dream have no effect"});
}

TEST_CASE("a schedule whose beta reaches 1 is refused with the step") {
  const NetworkName network{"the prior", "prior", "embedding"};
  Faults faults;
  CHECK(check_betas(BetaSchedule::linear, 21, network, faults));
  CHECK(check_betas(BetaSchedule::cosine, 1, network, faults));
  CHECK(lines_of(faults) == Lines{});
  CHECK_FALSE(check_betas(BetaSchedule::linear, 20, network, faults));
  CHECK(lines_of(faults) ==
        Lines{"error /prior/timesteps: with 20 timesteps the linear schedule of the prior has beta "
              "1 at step 19; a beta must stay below 1, or the loss is NaN: use at least 21 "
              "timesteps, or the cosine schedule"});
}

}  // namespace dalle2
