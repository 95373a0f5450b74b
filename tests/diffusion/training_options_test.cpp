// SPDX-License-Identifier: MIT
// The options of `train` that change a decoder's loss, from the JSON to the gradients.
#include <ATen/autocast_mode.h>

#include "diffusion/decoder_fixture.h"
#include "diffusion/loss.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

const std::vector<json> kObjectives = {
    json::object(), {{"predict_v", true}}, {{"predict_x_start", true}}};

DecoderInputs inputs(int64_t batch) {
  return {wave({batch, 3, 16, 16}, 0.05, 0, 0.5, 0.5), wave({batch, 12}, 0.9, 0.3), {}};
}

/// A decoder section of one unet without learned variance.
json plain(const json& more = json::object()) {
  json section = d1_decoder({{"learned_variance", false}});
  section.update(more);
  return section;
}

at::Tensor loss_of(const json& decoder, const json& train, const DecoderStepNoise& draws) {
  return decoder_of(decoder, train)->loss(inputs(draws.times.size(0)), 1, draws);
}

NoiseSchedule schedule() {
  NoiseScheduleOptions options;
  options.timesteps = 30;  // as d1_decoder
  return NoiseSchedule(options);
}

Objective objective_of(const json& section) {
  return section.contains("predict_v")         ? Objective::v
         : section.contains("predict_x_start") ? Objective::x_start
                                               : Objective::eps;
}

std::vector<at::Tensor> gradients(Decoder decoder) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : decoder->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

}  // namespace

TEST_CASE("min_snr_gamma multiplies each sample's loss by its weight, whatever is predicted") {
  const NoiseSchedule s = schedule();
  for (const json& objective : kObjectives) {
    INFO(objective.dump());
    for (const int64_t t : {0, 7, 15, 29}) {
      const at::Tensor before = loss_of(plain(objective), json::object(), draws_at({t}));
      const at::Tensor after = loss_of(plain(objective), {{"min_snr_gamma", 2.5}}, draws_at({t}));
      const at::Tensor weight = min_snr_weights(
          signal_to_noise(*s, at::tensor({t}, at::kLong)), 2.5, objective_of(objective));
      CHECK(at::equal(after, before * weight[0]));
    }
  }
}

TEST_CASE("The loss of a batch is the mean of the weighted losses of its samples") {
  const json train = {{"min_snr_gamma", 2.5}};
  DecoderStepNoise both = draws_at({7, 20});
  both.noise = both.noise.narrow(0, 0, 1).repeat({2, 1, 1, 1});
  DecoderInputs same = inputs(1);
  same.images = same.images.repeat({2, 1, 1, 1});
  same.image_embeds = same.image_embeds.repeat({2, 1});
  const at::Tensor mean =
      (loss_of(plain(), train, draws_at({7})) + loss_of(plain(), train, draws_at({20}))) / 2;
  expect_close(decoder_of(plain(), train)->loss(same, 1, both), mean, 1e-5, "mean of the batch");
}

TEST_CASE("min_snr_gamma leaves the variational bound as it is") {
  for (const int64_t t : {2, 15}) {
    const auto bound = [&](const json& train) {
      return (loss_of(d1_decoder(), train, draws_at({t})) -
              loss_of(d1_decoder({{"vb_loss_weight", 0}}), train, draws_at({t})))
          .item<double>();
    };
    const double unweighed = bound(json::object());
    CHECK(unweighed > 1e-5);
    // Differences of losses near 1: some roundings of fp32.
    CHECK(bound({{"min_snr_gamma", 1.5}}) == Approx(unweighed).margin(1e-6));
  }
}

TEST_CASE("One gamma for each unet weighs each by its own, null not at all") {
  const json decoder = cascade({{"learned_variance", false}});
  const json train = {{"min_snr_gamma", {nullptr, 1.0}}};
  const DecoderInputs batch{wave({1, 3, 16, 16}, 0.05, 0, 0.5, 0.5), {}, {}};
  for (const int64_t unet : {1, 2}) {
    Decoder before = decoder_of(decoder), after = decoder_of(decoder, train);
    DecoderStepNoise draws =
        before->draw(1, unet, at::make_generator<at::CPUGeneratorImpl>(uint64_t{3}));
    draws.times = at::tensor({3}, at::kLong);
    const at::Tensor unweighed = before->loss(batch, unet, draws);
    CHECK(at::equal(after->loss(batch, unet, draws), unweighed) == (unet == 1));
  }
}

TEST_CASE("DREAM trains on the network's own error: the loss and gradients written out") {
  Decoder decoder = decoder_of(d1_decoder(), {{"dream", {{"enabled", true}}}});
  const DecoderStepNoise draws = draws_at({3, 17});
  const DecoderInputs batch = inputs(2);
  const at::Tensor loss = decoder->loss(batch, 1, draws);
  loss.backward();
  const std::vector<at::Tensor> actual = gradients(decoder);

  Decoder same = decoder_of(d1_decoder());
  const NoiseSchedule s = schedule();
  UnetConditions conditions;
  conditions.image_embed = batch.image_embeds;
  conditions.image_keep_mask = draws.image_keep_mask;
  conditions.text_keep_mask = draws.text_keep_mask;
  const at::Tensor x_start = batch.images * 2 - 1;
  at::Tensor x_t = s->q_sample(x_start, draws.times, draws.noise);
  const at::Tensor first =
      same->unet(1)->forward(x_t, draws.times, conditions).narrow(1, 0, 3).detach();
  const at::Tensor sigma =
      s->sqrt_one_minus_alphas_cumprod.gather(0, draws.times).view({2, 1, 1, 1});
  const at::Tensor error = sigma * (draws.noise - first);
  x_t = x_t + sigma * error;
  const at::Tensor output = same->unet(1)->forward(x_t, draws.times, conditions);
  const at::Tensor simple =
      at::mse_loss(output.narrow(1, 0, 3), draws.noise + error, at::Reduction::Mean);
  const at::Tensor bits = LearnedVariance{}.bound(
      *s,
      x_start,
      x_t,
      draws.times,
      s->x_start_of(Objective::eps, x_t, draws.times, output.narrow(1, 0, 3)),
      output.narrow(1, 3, 3));
  const at::Tensor expected = simple + 0.001 * bits.mean();
  expected.backward();
  // The same operations except for the order of a mean.
  expect_close(loss, expected, 1e-6, "loss");
  const std::vector<at::Tensor> written_out = gradients(same);
  int compared = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    REQUIRE(actual[i].defined() == written_out[i].defined());
    if (actual[i].defined() && written_out[i].abs().max().item<double>() > 1e-5) {
      expect_close(actual[i], written_out[i], 1e-4, fmt::format("gradient {}", i));
      ++compared;
    }
  }
  CHECK(compared > 50);

  Decoder detailed =
      decoder_of(d1_decoder(), {{"dream", {{"enabled", true}, {"detail_preservation", 3}}}});
  CHECK_FALSE(at::equal(detailed->loss(batch, 1, draws), loss));
}

TEST_CASE("A noise offset is noise that the network learns to find") {
  const json train = {{"noise_offset", 0.2}};
  DecoderStepNoise draws = draws_at({3, 17});
  draws.augmentation.offset = wave({2, 3, 1, 1}, 0.7, 0.4, 1.5);
  DecoderStepNoise shifted = draws;
  shifted.noise = draws.noise + 0.2 * draws.augmentation.offset;
  for (const json& objective : kObjectives) {
    CHECK(at::equal(loss_of(plain(objective), train, draws),
                    loss_of(plain(objective), json::object(), shifted)));
  }
}

TEST_CASE("An input perturbation is noise that the target does not hold") {
  DecoderStepNoise draws = draws_at({3, 17});
  draws.augmentation.perturbation = wave({2, 3, 16, 16}, 0.41, 0.4, 1.5);
  Decoder decoder = decoder_of(plain(), {{"input_perturbation", 0.3}});
  UnetConditions conditions;
  conditions.image_embed = inputs(2).image_embeds;
  conditions.image_keep_mask = conditions.text_keep_mask = draws.image_keep_mask;
  const at::Tensor x_t = schedule()->q_sample(
      inputs(2).images * 2 - 1, draws.times, draws.noise + 0.3 * draws.augmentation.perturbation);
  const at::Tensor expected =
      at::mse_loss(decoder->unet(1)->forward(x_t, draws.times, conditions), draws.noise);
  expect_close(decoder->loss(inputs(2), 1, draws), expected, 1e-6, "loss");
}

TEST_CASE("What is drawn for the augmentations changes no other draw") {
  const json decoder = cascade({{"use_noise_for_lowres_cond", true}});
  const json train = {{"noise_offset", 0.1}, {"input_perturbation", 0.1}};
  const auto draw = [&](const json& options) {
    return Decoder(plan_of(decoder, options))
        ->draw(4, 2, at::make_generator<at::CPUGeneratorImpl>(uint64_t{5}));
  };
  const DecoderStepNoise off = draw(json::object()), on = draw(train);
  CHECK(at::equal(off.times, on.times));
  CHECK(at::equal(off.noise, on.noise));
  CHECK(at::equal(off.lowres.noise, on.lowres.noise));
  CHECK_FALSE(off.augmentation.offset.defined());
  CHECK_FALSE(off.augmentation.perturbation.defined());
  CHECK(on.augmentation.offset.sizes() == at::IntArrayRef({4, 3, 1, 1}));
  CHECK(on.augmentation.perturbation.sizes() == at::IntArrayRef({4, 3, 16, 16}));
}

TEST_CASE("All options together train a self-conditioned unet under autocast, every weight") {
  json unet = d1_unet();
  unet["self_cond"] = true;
  const json train = {{"min_snr_gamma", 5},
                      {"dream", {{"enabled", true}}},
                      {"noise_offset", 0.1},
                      {"input_perturbation", 0.1},
                      {"loss_weighting", "cosmap"},
                      {"timestep_sampling", {{"scheme", "mode"}}}};
  const auto trained = [&](const json& options) {
    Decoder decoder = decoder_of(d1_decoder({{"unets", {unet}}}), options);
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{5});
    DecoderStepNoise draws = decoder->draw(2, 1, generator);
    draws.self_condition = !options.empty();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor loss = decoder->loss(inputs(2), 1, draws);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(loss.scalar_type() == at::kFloat);
    CHECK(loss.isfinite().item<bool>());
    loss.backward();
    std::vector<bool> has_gradient;
    for (const at::Tensor& gradient : gradients(decoder))
      has_gradient.push_back(gradient.defined());
    return has_gradient;
  };
  CHECK(trained(train) == trained(json::object()));
}

}  // namespace dalle2::test
