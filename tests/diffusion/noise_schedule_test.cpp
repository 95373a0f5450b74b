// SPDX-License-Identifier: MIT
#include "diffusion/noise_schedule.h"

#include <torch/torch.h>

#include "diffusion/loss.h"
#include "diffusion/sampler.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

// Buffers are rounded to fp32 after the same fp64 formulas; jsd is fp32 throughout.
constexpr double kBufferTolerance = 2e-6;

const std::vector<std::pair<std::string, BetaSchedule>> kSchedules = {
    {"cosine", BetaSchedule::cosine},
    {"linear", BetaSchedule::linear},
    {"quadratic", BetaSchedule::quadratic},
    {"jsd", BetaSchedule::jsd},
    {"sigmoid", BetaSchedule::sigmoid}};

NoiseSchedule p2_schedule_of(BetaSchedule kind, int64_t timesteps) {
  NoiseScheduleOptions options;
  options.kind = kind;
  options.timesteps = timesteps;
  options.p2_loss_weight_gamma = 0.5;
  options.p2_loss_weight_k = 2;
  return NoiseSchedule(options);
}

struct Noised {
  at::Tensor x_start = wave({3, 2, 4, 4}, 0.31);
  at::Tensor noise = wave({3, 2, 4, 4}, 0.83, 0.5, 1.2);
  at::Tensor t = at::tensor({0, 11, 20}, at::kLong);
};

// x_start is x_t less the noise, times sqrt(1 / acp): some four roundings of numbers up to 2, grown
// by that factor where the image is nearly gone (49 at t = 20 of 25 sigmoid steps).
double inversion_tolerance(const NoiseScheduleImpl& s, const at::Tensor& t) {
  const double growth = s.sqrt_recip_alphas_cumprod.index_select(0, t).max().item<double>();
  return std::max(1e-5, 4 * 2 * std::ldexp(1.0, -24) * growth);
}

}  // namespace

TEST_CASE("The buffers of every schedule have the reference's names, order, type and values") {
  const Fixture fixture = load_fixture("diffusion/schedules");
  const auto order = fixture.json["order"].get<std::vector<std::string>>();
  REQUIRE(order.size() == 13);
  int compared = 0;
  for (const auto& [name, kind] : kSchedules) {
    for (const int64_t timesteps : {5, 25, 1000}) {
      const std::string prefix = fmt::format("{}.{}.", name, timesteps);
      if (!fixture.has(prefix + "index")) continue;  // betas above 1
      ++compared;
      const auto buffers = p2_schedule_of(kind, timesteps)->named_buffers();
      REQUIRE(buffers.keys() == order);
      for (const auto& item : buffers) {
        CHECK(item.value().scalar_type() == at::kFloat);
        // Element by element: the small entries matter as much as the large ones.
        const at::Tensor actual = item.value().index_select(0, fixture.tensor(prefix + "index"));
        const at::Tensor expected = fixture.tensor(prefix + item.key());
        INFO(prefix << item.key());
        CHECK(at::allclose(actual, expected, kBufferTolerance, 1e-12));
      }
    }
  }
  CHECK(compared == 12);
}

TEST_CASE("Zero terminal SNR equals diffusers' rescaling and keeps the first step") {
  const Fixture fixture = load_fixture("diffusion/schedules");
  const at::Tensor before = at::linspace(0.002, 0.4, 50, at::kDouble);
  const at::Tensor after = rescale_zero_terminal_snr(before);
  expect_close(after, fixture.tensor("zero_terminal_snr.betas"), 1e-12, "betas");
  CHECK(after[0].item<double>() == Approx(0.002).epsilon(1e-9));

  NoiseScheduleOptions options;
  options.kind = BetaSchedule::cosine;
  options.timesteps = 40;
  CHECK_FALSE(NoiseSchedule(options)->has_zero_terminal_snr());
  options.zero_terminal_snr = true;
  const NoiseSchedule schedule(options);
  CHECK(schedule->has_zero_terminal_snr());
  CHECK(schedule->alphas_cumprod[-1].item<float>() == 0.0F);
  CHECK(p2_schedule_of(BetaSchedule::jsd, 10)->has_zero_terminal_snr());
}

TEST_CASE("Noise, v and the clean image turn into each other and back") {
  const Noised n;
  for (const auto& [name, kind] : kSchedules) {
    INFO(name);
    const NoiseSchedule s = p2_schedule_of(kind, 25);
    const at::Tensor x_t = s->q_sample(n.x_start, n.t, n.noise);
    for (const Objective objective : {Objective::eps, Objective::x_start, Objective::v}) {
      const at::Tensor said = s->target(objective, n.x_start, n.t, n.noise);
      expect_close(s->x_start_of(objective, x_t, n.t, said),
                   n.x_start,
                   inversion_tolerance(*s, n.t),
                   "clean image");
    }
    expect_close(s->noise_from_x_start(x_t, n.t, n.x_start), n.noise, 1e-5, "noise from x");
  }
}

TEST_CASE("The last step of a schedule without signal still gives finite noise and posteriors") {
  const NoiseSchedule s = p2_schedule_of(BetaSchedule::jsd, 8);
  const at::Tensor t = at::tensor({7}, at::kLong);
  const at::Tensor x = wave({1, 1, 4, 4}, 0.83);
  const at::Tensor x_start = s->x_start_of(Objective::v, x, t, wave({1, 1, 4, 4}));
  expect_close(x_start, -wave({1, 1, 4, 4}), 1e-6, "all that v says there is the image");
  expect_close(s->noise_from_x_start(x, t, x_start), x, 1e-6, "all of x is noise");
  CHECK(s->q_posterior(x_start, x, t).mean.isfinite().all().item<bool>());
}

TEST_CASE("Losses are means over a sample's pixels") {
  const Fixture fixture = load_fixture("diffusion/formulas");
  const at::Tensor a = 3 * fixture.tensor("x");
  const at::Tensor b = fixture.tensor("mean");
  expect_close(pixel_loss(LossType::l1, a, b), fixture.tensor("loss.l1"), 1e-6, "l1");
  expect_close(pixel_loss(LossType::l2, a, b), fixture.tensor("loss.l2"), 1e-6, "l2");
  expect_close(pixel_loss(LossType::huber, a, b), fixture.tensor("loss.huber"), 1e-6, "huber");
}

TEST_CASE("KL and the discretised likelihood equal the reference's") {
  const Fixture f = load_fixture("diffusion/formulas");
  const at::Tensor scale = f.tensor("log_scale");
  expect_close(normal_kl(f.tensor("mean"), scale, f.tensor("mean2"), scale * 0.5),
               f.tensor("kl"),
               1e-5,
               "kl");
  // log(cdf - cdf) cancels: one unit in the last place of a cdf moves a small difference by 1e-3.
  expect_close(discretized_gaussian_log_likelihood(f.tensor("x"), f.tensor("mean"), scale),
               f.tensor("likelihood"),
               1e-3,
               "likelihood");
}

TEST_CASE("The variational bound teaches the variance alone, never the mean") {
  const Noised n;
  const NoiseSchedule s = p2_schedule_of(BetaSchedule::linear, 25);
  const at::Tensor x_t = s->q_sample(n.x_start, n.t, n.noise);
  const at::Tensor mean = wave({3, 2, 4, 4}, 0.2).requires_grad_();
  const at::Tensor fraction = wave({3, 2, 4, 4}, 0.6).requires_grad_();
  for (const bool constrain : {false, true}) {
    const LearnedVariance variance{constrain};
    variance.bound(*s, n.x_start, x_t, n.t, mean, fraction).sum().backward();
    CHECK_FALSE(mean.grad().defined());
    // At t = 0 a likelihood below its floor of 1e-12 teaches nothing; elsewhere every pixel learns.
    CHECK(fraction.grad()[0].abs().max().item<double>() > 0);
    CHECK(fraction.grad().slice(0, 1).abs().min().item<double>() > 0);
    // Eq. 15 at its ends: fraction 1 is beta, -1 the posterior; a sigmoid reaches neither.
    const at::Tensor top = variance.log_variance(*s, n.t, at::ones({3, 1, 1, 1})).flatten();
    const at::Tensor beta = s->betas.index_select(0, n.t).log();
    CHECK(at::allclose(top, beta) == !constrain);
  }
}

TEST_CASE("A variance far out of its bounds gives finite gradients at the first step, too") {
  // As an untrained head or a diverging run may say; the reference's gradients are NaN there.
  const Noised n;
  const NoiseSchedule s = p2_schedule_of(BetaSchedule::linear, 25);
  const at::Tensor x_t = s->q_sample(n.x_start, n.t, n.noise);
  for (const double raw : {-6.0, -3.0, 3.0}) {
    INFO("raw fraction " << raw);
    const at::Tensor fraction = at::full({3, 2, 4, 4}, raw).requires_grad_();
    const at::Tensor bound =
        LearnedVariance{}.bound(*s, n.x_start, x_t, n.t, wave({3, 2, 4, 4}, 0.2), fraction);
    CHECK(bound.isfinite().all().item<bool>());
    bound.sum().backward();
    CHECK(fraction.grad().isfinite().all().item<bool>());
    CHECK(fraction.grad().slice(0, 1).abs().min().item<double>() > 0);
  }
}

}  // namespace dalle2::test
