// SPDX-License-Identifier: MIT
#include "trainer/decoder_trainer.h"

#include "trainer/tensor_group.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

at::Generator generator(int64_t step) {
  return make_generator({0, "train", 0, step}, at::kCPU);
}

std::vector<at::Tensor> gradients(DecoderTrainer& trainer, int64_t unet) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : trainer.decoder()->unet(unet)->parameters())
    gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  return gradients;
}

std::vector<at::Tensor> weights(DecoderTrainer& trainer, int64_t unet) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : trainer.decoder()->unet(unet)->parameters())
    weights.push_back(parameter.detach().clone());
  return weights;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (size_t i = 0; equal && i < a.size(); ++i)
    equal = a[i].defined() == b[i].defined() && (!a[i].defined() || at::equal(a[i], b[i]));
  return equal;
}

/// `dalle2_train` of a run that recomputes `first` levels of unet 1 within a budget.
Dict choices_of(const test::TrainerFixture& fixture, double gib, int64_t first) {
  DecoderTrainConfig config = fixture.train_config();
  config.memory_budget_gib = gib;
  const auto trainer = fixture.trainer(config);
  trainer->decoder()->unet(1)->recompute_levels(first);
  Dict own;
  trainer->add_choices(own);
  return own;
}

TEST_CASE("a memory budget keeps its levels over a stop until it is changed") {
  DecoderTrainConfig config = test::cascade().train_config();
  config.memory_budget_gib = 1.5;
  const auto levels_after = [&](const Dict& own) {
    const auto trainer = test::cascade().trainer(config);
    trainer->decoder()->unet(2)->recompute_levels(1);  // what this start chose
    const Value saved = own;
    trainer->take_choices(Cursor(saved, "run.pth"));
    return std::vector{trainer->decoder()->unet(1)->recomputed_levels(),
                       trainer->decoder()->unet(2)->recomputed_levels()};
  };
  CHECK(levels_after(choices_of(test::cascade(), 1.5, 2)) == std::vector<int64_t>{2, 0});
  CHECK(levels_after(choices_of(test::cascade(), 1.25, 2)) == std::vector<int64_t>{0, 1});
  CHECK(levels_after({}) == std::vector<int64_t>{0, 1});

  Dict choice, damaged;
  choice.set("gib", 1.5);
  choice.set("levels", List{{99, 0}});
  damaged.set("memory_budget", choice);
  CHECK_THROWS_WITH(
      levels_after(damaged),
      Catch::Matches("run.pth: /memory_budget/levels/0: expected 0 to [0-9]+, got 99"));
}

TEST_CASE("chunks of a batch give the loss and gradients of the whole, a short last one too") {
  const DecoderInputs inputs = test::drawn_inputs(5, 1);
  for (const int64_t unet : {1, 2}) {
    DecoderTrainConfig config = test::cascade().train_config();
    config.max_batch_size = 2;
    const auto whole = test::cascade().trainer(), chunked = test::cascade().trainer(config);
    const double loss = whole->step(inputs, unet, generator(0)).item<double>();
    CHECK(chunked->step(inputs, unet, generator(0)).item<double>() == Approx(loss).epsilon(1e-6));
    const auto expected = gradients(*whole, unet), actual = gradients(*chunked, unet);
    size_t compared = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      REQUIRE(actual[i].defined() == expected[i].defined());
      // Gradients that cancel to about zero keep the rounding of what cancelled: up to 1.2e-4 of them,
      // with one thread or two.
      if (expected[i].defined() && expected[i].abs().max().item<double>() > 1e-5) {
        test::expect_close(
            actual[i], expected[i], 3e-4, fmt::format("gradient {} of unet {}", i, unet));
        ++compared;
      }
    }
    CHECK(compared > 50);
  }
}

TEST_CASE("batches weighted by their samples give the gradients of all in one") {
  const DecoderInputs inputs = test::drawn_inputs(5, 1);
  const auto whole = test::cascade().trainer(), parts = test::cascade().trainer();
  const DecoderStepNoise draws = whole->decoder()->draw(5, 1, generator(0));
  const double loss = whole->step(inputs, 1, draws).item<double>();
  double sum = 0;
  for (const ChunkRange& range : {ChunkRange{0, 3}, ChunkRange{3, 2}}) {
    const double weight = static_cast<double>(range.length) / 5;
    sum += parts->step(chunk_of(inputs, range), 1, chunk_of(draws, range), {weight}).item<double>();
  }
  CHECK(sum == Approx(loss).epsilon(1e-6));
  whole->update(1);
  parts->update(1);
  CHECK(parts->last_grad_norm(1).item<double>() ==
        Approx(whole->last_grad_norm(1).item<double>()).epsilon(1e-5));
}

TEST_CASE("an update changes its unet alone and counts its step alone") {
  const auto trainer = test::cascade().trainer();
  const auto first = weights(*trainer, 1), second = weights(*trainer, 2);
  trainer->step(test::drawn_inputs(2, 1), 2, generator(0));
  trainer->update(2);
  CHECK(all_equal(weights(*trainer, 1), first));
  CHECK_FALSE(all_equal(weights(*trainer, 2), second));
  for (const at::Tensor& gradient : gradients(*trainer, 2)) CHECK_FALSE(gradient.defined());
  CHECK(trainer->steps(1) == 0);
  CHECK(trainer->steps(2) == 1);
  CHECK(trainer->learning_rate(1) == Approx(1e-3 / 3));
  CHECK(trainer->learning_rate(2) == Approx(5e-4));
}

TEST_CASE("evaluating gives the loss of a step, no gradients, and leaves the mode as it was") {
  const auto trainer = test::cascade().trainer();
  const DecoderInputs inputs = test::drawn_inputs(3, 1);
  const at::Tensor loss = trainer->evaluate(inputs, 1, generator(0));
  CHECK_FALSE(loss.requires_grad());
  CHECK_FALSE(at::equal(trainer->evaluate(inputs, 1, generator(1)), loss));
  for (const at::Tensor& gradient : gradients(*trainer, 1)) CHECK_FALSE(gradient.defined());
  CHECK(trainer->decoder()->is_training());
  CHECK(trainer->step(inputs, 1, generator(0)).item<double>() ==
        Approx(loss.item<double>()).epsilon(1e-6));
  TrainerProbe::set_max_batch_size(*trainer, 2);  // a short chunk at the end
  CHECK(trainer->evaluate(inputs, 1, generator(0)).item<double>() ==
        Approx(loss.item<double>()).epsilon(1e-6));
}

TEST_CASE("a stage that is masked out is not trained and cannot be asked for a step") {
  const test::TrainerFixture fixture("masked");
  const auto trainer = fixture.trainer();
  CHECK_FALSE(trainer->is_trained(1));
  CHECK(trainer->is_trained(2));
  CHECK(trainer->decoder()->unet(1) == nullptr);
  CHECK(TrainerProbe::averaged(*trainer, 1).is_empty());
  CHECK_THROWS_WITH(
      trainer->step(test::drawn_inputs(2, 1), 1, generator(0)),
      Catch::Contains("unet 1 is not trained") && Catch::Contains("unet_training_mask"));
  CHECK_THROWS_WITH(trainer->update(3), Catch::Contains("unets 1 to 2"));
}

TEST_CASE("an empty batch is refused") {
  const auto trainer = test::cascade().trainer();
  CHECK_THROWS_AS(trainer->step(test::drawn_inputs(0, 1), 1, generator(0)), DataError);
  CHECK_THROWS_AS(trainer->step({}, 1, generator(0)), DataError);
}

TEST_CASE("one limit for each unet clips each unet by its own") {
  DecoderTrainConfig config = test::cascade().train_config();
  config.max_grad_norm = std::vector<double>{1e9, 1e-9};
  config.eps = 1.0;  // makes the size of an update follow the size of the gradient
  const auto trainer = test::cascade().trainer(config);
  const DecoderInputs inputs = test::drawn_inputs(2, 1);
  const auto change = [&](int64_t unet) {
    const auto before = weights(*trainer, unet);
    trainer->step(inputs, unet, generator(0));
    trainer->update(unet);
    const auto after = weights(*trainer, unet);
    double largest = 0.0;
    for (size_t i = 0; i < before.size(); ++i) {
      if (before[i].dim() < 2) {  // these do not decay
        largest = std::max(largest, (after[i] - before[i]).abs().max().item<double>());
      }
    }
    return largest;
  };
  CHECK(change(1) > 1e-8);
  CHECK(change(2) < 1e-10);
}

}  // namespace
}  // namespace dalle2
