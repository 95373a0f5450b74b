// SPDX-License-Identifier: MIT
#include "trainer/clip_trainer.h"

#include <torch/torch.h>

#include "checkpoint/clip/clip_file.h"
#include "checkpoint/module_state.h"
#include "dist/ranks_in_threads.h"
#include "model/clip_support.h"
#include "support/rounding_noise.h"
#include "support/tiny_clip.h"
#include "trainer/trainer_probe.h"

namespace dalle2 {
namespace {

ClipTrainConfig train_config(std::optional<int64_t> max_batch_size = std::nullopt) {
  ClipTrainConfig config;
  config.max_batch_size = max_batch_size;
  config.lr = 1e-3;
  return config;
}

std::unique_ptr<ClipTrainer> make_trainer(const ClipTrainConfig& config) {
  torch::manual_seed(1);
  return std::make_unique<ClipTrainer>(
      std::make_shared<ClipImpl>(test::tiny_clip()), config, at::kCPU);
}

/// Twelve pairs, cut after each of `ends`.
std::vector<ClipInputs> batches(const std::vector<int64_t>& ends) {
  torch::manual_seed(2);
  const at::Tensor images = at::rand({12, 3, 8, 8});
  at::Tensor tokens = at::randint(0, 518, {12, 6}, at::kLong);
  tokens.select(1, 0).fill_(518);
  tokens.select(1, 5).fill_(519);
  std::vector<ClipInputs> all;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    all.push_back({images.narrow(0, begin, end - begin), tokens.narrow(0, begin, end - begin)});
    begin = end;
  }
  return all;
}

at::Tensor gradients_of(const ClipTrainer& trainer) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : trainer.clip().parameters()) flat.push_back(each.grad().flatten());
  return at::cat(flat).clone();
}

TEST_CASE("accumulation and chunks give a CLIP the loss and the gradients of the whole batch") {
  const auto whole = make_trainer(train_config());
  const double loss = whole->step(batches({12})).item<double>();
  const at::Tensor gradients = gradients_of(*whole);
  CHECK(gradients.norm().item<double>() > 1e-3);
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), {5}}) {
    const auto parts = make_trainer(train_config(most));
    CHECK(parts->step(batches({3, 4, 12})).item<double>() == Approx(loss).epsilon(1e-5));
    // Sums in another order: float32.
    CHECK((gradients_of(*parts) - gradients).norm().item<double>() <
          1e-4 * gradients.norm().item<double>());
  }
}

/// The loss of the first update, and the gradients that it was made from, by name.
struct FirstUpdate {
  double loss = 0;
  StateDict gradients;
};

FirstUpdate update_of(ClipTrainer& trainer, const ClipInputs& own) {
  FirstUpdate found;
  found.loss = trainer.step({own}).item<double>();
  trainer.update();
  const TrainedPart& part = *TrainerProbe::contents(trainer).parts.front();
  // With a first beta of 0 the first moment is the gradient.
  const at::Tensor gradients = part.whole_moments().exp_avg.clone();
  for (const FlatEntry& entry : part.parameters.parameters())
    found.gradients.emplace_back(entry.name, entry.of(gradients));
  return found;
}

/// Where each of `size` ranks ends in a batch of 4; the first of three ranks has no sample.
std::vector<int64_t> ends_of_ranks(int size) {
  if (size == 1) return {4};
  return size == 2 ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{0, 3, 4};
}

void check_against_open_clip(const test::Fixture& fixture, int size) {
  const ClipNetworkConfig config = test::clip_config_of(fixture.json.at("config"));
  ClipTrainConfig options = train_config(/*max_batch_size=*/2);
  options.betas = {0.0, 0.98};
  const int64_t side = config.vision_cfg.image_size;
  const at::Tensor tokens = fixture.tensor("tokens");
  const at::Tensor images = test::wave(
      {tokens.size(0), 3, side, side}, 0.37, fixture.json.at("phase").get<double>(), 0.5, 0.5);
  std::mutex mutex;
  std::vector<FirstUpdate> found;
  test::as_ranks(size, [&](ProcessGroup& group) {
    const auto ends = ends_of_ranks(size);
    const int64_t begin = group.rank() == 0 ? 0 : ends[static_cast<size_t>(group.rank()) - 1];
    const int64_t length = ends[static_cast<size_t>(group.rank())] - begin;
    std::unique_ptr<ClipTrainer> trainer;
    {
      const std::lock_guard lock(mutex);  // of the default generator
      trainer = std::make_unique<ClipTrainer>(test::filled_clip(config), options, at::kCPU);
    }
    trainer->connect(group, {});
    const FirstUpdate own =
        update_of(*trainer, {images.narrow(0, begin, length), tokens.narrow(0, begin, length)});
    const std::lock_guard lock(mutex);
    found.push_back(own);
  });
  REQUIRE(found.size() == static_cast<size_t>(size));
  double largest = 0;
  for (const auto& [name, gradient] : found.front().gradients)
    largest = std::max(largest, fixture.tensor("grad." + name)[0].item<double>());
  for (const FirstUpdate& each : found) {
    CHECK(each.loss == Approx(fixture.tensor("loss").item<double>()).epsilon(2e-5));
    for (const auto& [name, gradient] : each.gradients) {
      CAPTURE(name);
      const at::Tensor expected = fixture.tensor("grad." + name).to(at::kDouble);
      const double error = (test::compact(gradient) - expected).abs().max().item<double>();
      // Gradients pass every layer twice; one whose terms nearly cancel, as those of the logit scale
      // do, is compared with the largest. Its terms are of size 1, so that four roundings of float32
      // are allowed besides, or what the reference's own roundings move.
      constexpr double kRoundings = 4 * std::numeric_limits<float>::epsilon();
      const double noise = fixture.json.at("noise").at("grad." + name).get<double>();
      const double tolerance =
          2e-4 * std::max(expected.abs().max().item<double>(), 1e-3 * largest) +
          std::max(kRoundings, test::kNoiseStepsAllowed * noise);
      CHECK(error <= tolerance);
    }
  }
}

TEST_CASE("a CLIP's loss and gradients are open_clip's on 1, 2 and 3 ranks") {
  size_t cases = 0;
  for (const std::string& path : test::fixture_files(test::fixture_folder("clip"), 5)) {
    const test::Fixture fixture = test::load_fixture(path);
    // The statistics of batch norms are those of a rank's own pictures.
    if (fixture.json.at("config").at("vision_cfg").at("layers").is_array()) continue;
    ++cases;
    for (const int size : {1, 2, 3}) {
      CAPTURE(path, size);
      check_against_open_clip(fixture, size);
    }
  }
  CHECK(cases >= 2);
}

TEST_CASE("an evaluation has the loss of the update, and changes nothing") {
  const auto trainer = make_trainer(train_config());
  const int64_t before = trainer->checksum();
  const ClipEvaluation found = trainer->evaluate(batches({12}).front());
  CHECK(trainer->checksum() == before);
  CHECK(found.pairs.sizes() == at::IntArrayRef({12, 2, 8}));
  CHECK(at::allclose(found.pairs.norm(2, -1), at::ones({12, 2})));
  CHECK(found.loss.item<double>() ==
        Approx(trainer->step(batches({12})).item<double>()).epsilon(1e-5));
}

TEST_CASE("the dropout of adapters is that of the update's seed, whatever the chunks") {
  const auto gradients = [](std::optional<int64_t> most, uint64_t seed) {
    ClipTrainConfig config = train_config(most);
    config.lora.rank = 2;
    config.lora.dropout = 0.5;
    const auto trainer = make_trainer(config);
    trainer->step(batches({4, 12}), seed);
    std::vector<at::Tensor> flat;
    for (const at::Tensor& each : trainer->clip().parameters()) {
      if (each.requires_grad()) flat.push_back(each.grad().flatten());
    }
    return at::cat(flat).clone();
  };
  const at::Tensor expected = gradients(std::nullopt, 1);
  const double size = expected.norm().item<double>();
  CHECK(size > 0);
  CHECK((gradients(3, 1) - expected).norm().item<double>() < 1e-4 * size);
  CHECK((gradients(std::nullopt, 2) - expected).norm().item<double>() > 1e-2 * size);
}

TEST_CASE("the logit scale stays within its bounds") {
  ClipTrainConfig config = train_config();
  config.lr = 1.0;
  config.max_logit_scale = 15;
  const auto trainer = make_trainer(config);
  for (int i = 0; i < 3; ++i) {
    trainer->step(batches({12}));
    trainer->update();
    CHECK(trainer->logit_scale() <= 15 * (1 + 1e-6));
    CHECK(trainer->logit_scale() >= 1 - 1e-6);
  }
}

TEST_CASE("a CLIP's checkpoint has open_clip's names and the vocabulary, and resumes bit for bit") {
  ClipTrainConfig config = train_config();
  config.use_ema = true;
  config.ema_update_after_step = 0;
  config.ema_update_every = 1;
  const auto trainer = make_trainer(config);
  trainer->set_merges("a b\n");
  const auto update = [](ClipTrainer& one) {
    one.step(batches({12}));
    one.update();
  };
  update(*trainer);
  update(*trainer);
  const Value state = trainer->state({});
  const auto other = make_trainer(config);
  update(*other);
  other->load_state(state);
  CHECK(other->merges() == "a b\n");
  update(*trainer);
  update(*other);
  const Value expected = trainer->state({}), found = other->state({});
  for (const char* key : {"model", "ema_model"}) {
    const StateDict a = Cursor(expected, "a").at(key).as_state_dict();
    const StateDict b = Cursor(found, "b").at(key).as_state_dict();
    REQUIRE(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      CAPTURE(a[i].first);
      CHECK(a[i].first == b[i].first);
      CHECK(at::equal(a[i].second, b[i].second));
    }
  }
  const StateDict model = Cursor(expected, "a").at("model").as_state_dict();
  const StateDict names = state_dict(*std::make_shared<ClipImpl>(test::tiny_clip()));
  REQUIRE(model.size() == names.size());
  for (const auto& [name, tensor] : names) CHECK(find_tensor(model, name) != nullptr);
  // A model file has the averages, and the vocabulary.
  const Value file = trainer->model_state({});
  CHECK(Cursor(file, "file").at(kClipMergesKey).as_string() == "a b\n");
  const StateDict averaged = Cursor(file, "file").at("model").as_state_dict();
  const StateDict average = Cursor(expected, "a").at("ema_model").as_state_dict();
  CHECK(at::equal(*find_tensor(averaged, "logit_scale"), *find_tensor(average, "logit_scale")));
  CHECK_FALSE(at::equal(*find_tensor(averaged, "visual.conv1.weight"),
                        *find_tensor(model, "visual.conv1.weight")));
}

}  // namespace
}  // namespace dalle2
