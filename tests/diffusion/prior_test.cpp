// SPDX-License-Identifier: MIT
#include "diffusion/prior_fixture.h"
#include "model/random.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;

at::Generator generator(int64_t seed) {
  return make_generator({seed, "test"}, at::kCPU);
}

TEST_CASE("weights of the loss, densities of the times and DREAM act on a prior as on a unet") {
  const PriorInputs inputs = golden_inputs();
  PriorStepNoise draws;
  draws.times = torch::tensor({3, 17});
  draws.noise = wave({2, 16}, 0.83);
  const auto loss_of = [&](const LossPlan& plan, const nlohmann::json& more, int64_t only) {
    DiffusionPrior prior = prior_of(golden_prior(p2_net(), more), plan);
    PriorInputs one = {
        inputs.image_embeds.narrow(0, only, 1),
        {inputs.text.embeds.narrow(0, only, 1), inputs.text.encodings.narrow(0, only, 1)}};
    PriorStepNoise drawn;
    drawn.times = draws.times.narrow(0, only, 1);
    drawn.noise = draws.noise.narrow(0, only, 1);
    return prior->loss(one, drawn).item<double>();
  };
  DiffusionPrior plain = prior_of(golden_prior(p2_net()));
  for (const int64_t i : {0, 1}) {
    const at::Tensor t = draws.times.narrow(0, i, 1);
    const at::Tensor snr = signal_to_noise(plain->schedule(), t);
    LossPlan weighed;
    weighed.min_snr_gamma = 5.0;
    weighed.weighting = LossWeighting::cosmap;
    const double factor = (min_snr_weights(snr, 5.0, Objective::x_start) *
                           sigma_weights(LossWeighting::cosmap, noise_share(plain->schedule(), t)))
                              .item<double>();
    CHECK(loss_of(weighed, {}, i) == Approx(factor * loss_of({}, {}, i)).epsilon(1e-5));

    LossPlan dream;
    dream.dream.enabled = true;
    const nlohmann::json eps = {{"predict_x_start", false}};
    CHECK(loss_of(dream, eps, i) != Approx(loss_of({}, eps, i)).epsilon(1e-4));
  }
  LossPlan early;
  early.timestep_sampling.scheme = TimestepScheme::logit_normal;
  early.timestep_sampling.logit_mean = -3.0;
  DiffusionPrior noisy = prior_of(golden_prior(p2_net()), early);
  CHECK(noisy->draw(200, generator(1)).times.to(at::kFloat).mean().item<double>() > 25);
}

TEST_CASE("a perturbation is added to the noise that the network sees, not to the target's") {
  const PriorInputs inputs = golden_inputs();
  const auto loss_of = [&](double strength, const at::Tensor& noise, bool predict_v) {
    LossPlan plan;
    plan.input_perturbation = strength;
    torch::manual_seed(1);  // weights as they begin, which look at the image more than the waves do
    DiffusionPrior prior(prior_plan(golden_prior(p1_net(), {{"predict_v", predict_v}}), plan));
    PriorStepNoise draws;
    draws.times = torch::tensor({3, 17});
    draws.noise = noise;
    if (strength > 0) draws.augmentation.perturbation = wave({2, 16}, 0.47);
    return prior->loss(inputs, draws).item<double>();
  };
  const at::Tensor noise = wave({2, 16}, 0.83);
  const at::Tensor shifted = noise + 0.3 * wave({2, 16}, 0.47);
  CHECK(loss_of(0.3, noise, false) == Approx(loss_of(0, shifted, false)).epsilon(1e-6));
  CHECK(loss_of(0.3, noise, false) != Approx(loss_of(0, noise, false)).epsilon(1e-5));
  CHECK(loss_of(0.3, noise, true) != Approx(loss_of(0, shifted, true)).epsilon(1e-3));
}

TEST_CASE("what a step of the prior draws follows from its generator and the probabilities") {
  const nlohmann::json section =
      golden_prior(p3_net(), {{"text_cond_drop_prob", 0.2}, {"image_cond_drop_prob", 0.0}});
  DiffusionPrior prior = prior_of(section);
  const PriorStepNoise draws = prior->draw(10000, generator(3));
  const double dropped = draws.text_keep_mask.logical_not().to(at::kDouble).mean().item<double>();
  CHECK(std::abs(dropped - 0.2) < 3 * std::sqrt(0.2 * 0.8 / 10000));
  CHECK(draws.image_keep_mask.all().item<bool>());
  CHECK(draws.times.max().item<int64_t>() == 29);
  CHECK(draws.times.min().item<int64_t>() == 0);
  const PriorStepNoise again = prior->draw(10000, generator(3));
  CHECK(at::equal(draws.noise, again.noise));
  int self_conditioned = 0;
  for (int64_t seed = 0; seed < 100; ++seed)
    self_conditioned += prior->draw(1, generator(seed)).self_condition ? 1 : 0;
  CHECK(std::abs(self_conditioned - 50) < 15);
}

TEST_CASE("a prior's samples repeat with the seed and leave its mode and weights alone") {
  DiffusionPrior prior = prior_of(golden_prior(p3_net()));
  prior->train();
  PriorSampleOptions options;
  options.text = golden_inputs().text;
  options.timesteps = 5;
  options.generator = generator(4);
  const at::Tensor first = prior->sample(options);
  options.generator = generator(4);
  CHECK(at::equal(prior->sample(options), first));
  options.generator = generator(5);
  CHECK_FALSE(at::equal(prior->sample(options), first));
  CHECK(first.sizes() == at::IntArrayRef({2, 16}));
  CHECK_FALSE(first.requires_grad());
  CHECK(prior->is_training());
}

TEST_CASE("dropouts of the prior depend on seed and sample, not on the chunk") {
  const auto net = nlohmann::json{{"attn_dropout", 0.3}, {"ff_dropout", 0.2}};
  DiffusionPrior prior = prior_of(golden_prior(net));
  prior->train();
  const PriorInputs inputs = golden_inputs();
  PriorStepNoise draws = prior->draw(2, generator(7));
  const double whole = prior->loss(inputs, draws).item<double>();
  double parts = 0;
  for (const int64_t i : {0, 1}) {
    PriorStepNoise part = draws;
    for (at::Tensor* t : {&part.times, &part.noise, &part.text_keep_mask, &part.image_keep_mask})
      *t = t->narrow(0, i, 1);
    part.dropout.first_sample = i;
    parts +=
        prior
            ->loss({inputs.image_embeds.narrow(0, i, 1),
                    {inputs.text.embeds.narrow(0, i, 1), inputs.text.encodings.narrow(0, i, 1)}},
                   part)
            .item<double>() /
        2;
  }
  CHECK(parts == Approx(whole).epsilon(1e-5));
  draws.dropout.seed += 1;
  CHECK(prior->loss(inputs, draws).item<double>() != Approx(whole).epsilon(1e-4));
  prior->eval();
  const double calm = prior->loss(inputs, draws).item<double>();
  DiffusionPrior plain = prior_of(golden_prior(nlohmann::json::object()));
  CHECK(calm == Approx(plain->loss(inputs, draws).item<double>()).epsilon(1e-6));
}

TEST_CASE("inputs that do not fit a prior are refused with what was expected") {
  DiffusionPrior prior = prior_of(golden_prior(p2_net()));
  const auto refused = [&](auto change, const std::string& text) {
    PriorInputs inputs = golden_inputs();
    change(inputs);
    CHECK_THAT(message_of([&] { prior->forward(inputs, generator(0)); }), Contains(text));
  };
  refused(
      [](PriorInputs& of) {
        of.image_embeds = at::zeros({2, 12});
      },
      "image embeddings: expected [batch, 16], got [2, 12]");
  refused(
      [](PriorInputs& of) {
        of.text.embeds = at::zeros({3, 16});
      },
      "text embeddings of shape [3, 16] for a batch of 2");
  refused([](PriorInputs& of) { of.text.embeds = at::Tensor(); },
          "conditioned on text embeddings, but none was given");
  refused([](PriorInputs& of) { of.text.encodings = at::Tensor(); },
          "text encodings: expected [batch, length, 16], got none");
  refused(
      [](PriorInputs& of) {
        of.text.encodings = at::zeros({2, 3, 8});
      },
      "text encodings of shape [2, 3, 8], but net.dim is 16");
  PriorSampleOptions options;  // a sampler encodes the texts before its first step
  options.text = golden_inputs().text;
  options.text.encodings = at::zeros({2, 3, 8});
  options.timesteps = 5;
  CHECK_THAT(message_of([&] { prior->p_sample_loop(options); }),
             Contains("text encodings of shape [2, 3, 8], but net.dim is 16"));
}

TEST_CASE("sampling options that a prior cannot follow are refused") {
  DiffusionPrior prior = prior_of(golden_prior(p2_net(), {{"cond_drop_prob", 0.0}}));
  PriorSampleOptions options;
  options.text = golden_inputs().text;
  options.cond_scale = 2.0;
  for (const std::optional<int64_t> timesteps : {std::optional<int64_t>(5), {}}) {
    options.timesteps = timesteps;
    CHECK_THAT(message_of([&] { prior->p_sample_loop(options); }),
               Contains("cond_scale: expected 1, got 2"));
  }
  options.cond_scale = 1.0;
  for (const int64_t timesteps : {1, 31}) {
    options.timesteps = timesteps;
    CHECK_THAT(message_of([&] { prior->p_sample_loop(options); }),
               Contains("timesteps: expected 2 to 30"));
  }
  options.steps_name = "--prior-timesteps";
  CHECK_THAT(message_of([&] { prior->check_sample_options(options); }),
             Contains("--prior-timesteps: expected 2 to 30 (/prior/timesteps), got 31"));
  options.timesteps = 5;
  options.num_samples_per_text = 0;
  CHECK_THAT(message_of([&] { prior->sample(options); }),
             Contains("num_samples_per_text: expected at least 1, got 0"));
}

TEST_CASE("a prior that cannot be built is refused with its pointers") {
  const auto fault = [](const nlohmann::json& net, const nlohmann::json& more = {}) {
    return message_of([&] { prior_of(golden_prior(net, more)); });
  };
  CHECK_THAT(fault({{"num_timesteps", 20}}),
             Contains("/prior/net/num_timesteps: must equal prior.timesteps (30), got 20"));
  CHECK_THAT(fault({{"dim_head", 7}}), Contains("/prior/net/dim_head: must be even"));
  CHECK_THAT(fault({{"dim", 15}}, {{"image_embed_dim", 15}}),
             Contains("/prior/net/dim: must be even and 4 or more"));
  CHECK_THAT(fault({{"ff_mult", 0.01}}), Contains("/prior/net/ff_mult"));
  CHECK_THAT(fault({}, {{"beta_schedule", "jsd"}, {"predict_x_start", false}}),
             Contains("/prior/beta_schedule: the jsd schedule leaves nothing"));
}

}  // namespace
}  // namespace dalle2::test
