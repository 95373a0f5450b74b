// SPDX-License-Identifier: MIT
// A loss that is no mean over the samples, through what the trainers share.

#include "checkpoint/convert.h"
#include "checkpoint/inspect.h"
#include "dist/ranks_in_threads.h"
#include "run/commands.h"
#include "run/joint_toy.h"

namespace dalle2::test {
namespace {

TrainJointToyConfig config_with(std::optional<int64_t> max_batch_size = std::nullopt) {
  TrainJointToyConfig config;
  config.train.max_batch_size = max_batch_size;
  config.train.use_ema = false;
  return config;
}

std::unique_ptr<JointToyTrainer> trainer_of(const TrainJointToyConfig& config) {
  return std::make_unique<JointToyTrainer>(make_joint_toy(config), config);
}

/// Eight samples, cut after each of `ends`.
std::vector<JointToyInputs> batches(const std::vector<int64_t>& ends) {
  torch::manual_seed(4);
  const at::Tensor images = at::rand({8, 3, 2, 2}), embeds = at::randn({8, 3});
  std::vector<JointToyInputs> all;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    all.push_back({images.narrow(0, begin, end - begin), embeds.narrow(0, begin, end - begin)});
    begin = end;
  }
  return all;
}

/// The loss of the first update, and the weights after it.
struct FirstUpdate {
  double loss = 0;
  at::Tensor weights;
};

at::Tensor weights_of(const JointToyTrainer& trainer) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : trainer.network().parameters()) flat.push_back(each.flatten());
  return at::cat(flat).detach().clone();
}

FirstUpdate update(JointToyTrainer& trainer, const std::vector<JointToyInputs>& own) {
  trainer.step(own);
  trainer.update();
  return {trainer.last_loss().item<double>(), weights_of(trainer)};
}

FirstUpdate whole() {
  const auto trainer = trainer_of(config_with());
  return update(*trainer, batches({8}));
}

void check_same(const FirstUpdate& found, const FirstUpdate& expected) {
  CHECK(found.loss == Approx(expected.loss).epsilon(1e-5));
  // The optimizer's first step has the rate's size whatever the gradient's: signs are compared.
  CHECK(at::allclose(found.weights, expected.weights, 0, 1e-4));
}

TEST_CASE("a joint loss is that of the whole batch, and no mean of smaller ones") {
  const auto trainer = trainer_of(config_with());
  const at::Tensor expected = trainer->evaluate(batches({8}).front());
  CHECK(whole().loss == Approx(expected.item<double>()).epsilon(1e-6));
  const auto halves = batches({4, 8});
  const double mean =
      (trainer->evaluate(halves[0]).item<double>() + trainer->evaluate(halves[1]).item<double>()) /
      2;
  CHECK(std::abs(mean - expected.item<double>()) > 0.1);
}

TEST_CASE("chunks and accumulation change neither a joint loss nor its gradients") {
  const FirstUpdate expected = whole();
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), {1}, {3}, {8}}) {
    for (const auto& ends : {std::vector<int64_t>{8}, {4, 8}, {1, 2, 8}}) {
      CAPTURE(most.value_or(0), ends.size());
      const auto trainer = trainer_of(config_with(most));
      check_same(update(*trainer, batches(ends)), expected);
    }
  }
}

TEST_CASE("ranks change neither a joint loss nor its gradients, not even one without samples") {
  const FirstUpdate expected = whole();
  const int size = GENERATE(2, 3);
  const bool one_is_empty = GENERATE(false, true);
  std::mutex mutex;
  std::vector<FirstUpdate> found;
  as_ranks(size, [&](ProcessGroup& group) {
    // Of sizes that differ; with one_is_empty the last has none.
    std::vector<int64_t> ends =
        size == 2 ? std::vector<int64_t>{3, 8} : std::vector<int64_t>{1, 4, 8};
    if (one_is_empty) ends[static_cast<size_t>(size - 2)] = 8;
    std::unique_ptr<JointToyTrainer> trainer;
    JointToyInputs own;
    {
      const std::lock_guard lock(mutex);  // of the default generator
      trainer = trainer_of(config_with(2));
      own = batches(ends)[static_cast<size_t>(group.rank())];
    }
    trainer->connect(group, {});
    const FirstUpdate outcome = update(*trainer, {own});
    const std::lock_guard lock(mutex);
    found.push_back(outcome);
  });
  REQUIRE(found.size() == static_cast<size_t>(size));
  for (const FirstUpdate& each : found) {
    check_same(each, expected);
    CHECK(at::equal(each.weights, found.front().weights));
  }
}

TEST_CASE("a joint loss of a validation is of a rank's own batch") {
  std::array<double, 2> expected = {}, found = {};
  for (size_t i = 0; i < 2; ++i)
    expected[i] = trainer_of(config_with())->evaluate(batches({4, 8})[i]).item<double>();
  std::mutex mutex;
  as_ranks(2, [&](ProcessGroup& group) {
    const auto rank = static_cast<size_t>(group.rank());
    std::unique_ptr<JointToyTrainer> trainer;
    JointToyInputs own;
    {
      const std::lock_guard lock(mutex);  // of the default generator
      trainer = trainer_of(config_with(3));
      own = batches({4, 8})[rank];
    }
    trainer->connect(group, {});
    found[rank] = trainer->evaluate(own).item<double>();
  });
  for (size_t i = 0; i < 2; ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-5));
}

TEST_CASE("a part's weights can be changed after each step, before averages take them") {
  TrainJointToyConfig config = config_with();
  config.joint_toy.most_scale = 10;
  config.train.use_ema = true;
  const auto trainer = trainer_of(config);
  for (int i = 0; i < 5; ++i) {
    trainer->step(batches({8}));
    trainer->update();
    CHECK(trainer->network().scale.item<double>() <= 10);
  }
  const Value state = trainer->state({});
  const StateDict averages = Cursor(state, "state").at("ema_model").as_state_dict();
  REQUIRE(find_tensor(averages, "joint.scale") != nullptr);
  CHECK(find_tensor(averages, "joint.scale")->item<double>() <= 10);
}

// A kind that lives in the tests alone, through all that the kinds share.
TrainCommand train_of(const std::string& path, const std::vector<std::string>& overrides = {}) {
  return {.config_path = path, .overrides = overrides, .quiet = true};
}

StateDict model_in(const TempDir& folder, const std::string& out) {
  const Value checkpoint = read_checkpoint(folder / (out + "/checkpoint.pth"));
  return Cursor(checkpoint, out).at("model").as_state_dict();
}

TEST_CASE("a row makes a kind that trains on shards and resumes bit for bit") {
  register_joint_toy();
  const TempDir folder;
  const std::string whole = write_joint_toy(folder, "whole", 3);
  CHECK(run_train(train_of(whole)) == ExitCode::kDone);
  for (const int64_t epochs : {1, 3})
    CHECK(run_train(train_of(write_joint_toy(folder, "parts", epochs))) == ExitCode::kDone);
  const StateDict expected = model_in(folder, "whole"), found = model_in(folder, "parts");
  REQUIRE(expected.size() == 5);
  for (size_t i = 0; i < expected.size(); ++i)
    CHECK(at::equal(expected[i].second, found[i].second));
  const std::vector<double> losses = logged(folder / "whole", "Validation Loss");
  REQUIRE(losses.size() == 3);
  CHECK(losses.back() < losses.front());
  const CheckedFile checked = check_file(folder / "whole/checkpoint.pth");
  CHECK(checked.resume == Resume::kExact);
  CHECK_THAT(checked.missing, Catch::Matchers::Equals(std::vector<std::string>{}));
  CHECK_THAT(checked.faults, Catch::Matchers::Equals(std::vector<std::string>{}));
  TrainCommand dry = train_of(whole, {"/tracker/data_path=" + (folder / "dry")});
  dry.dry_run = true;
  CHECK(run_train(dry) == ExitCode::kDone);
}

TEST_CASE("what the shared places know of a kind comes from its row") {
  register_joint_toy();
  CHECK(config_schema("joint_toy").find("Numbers of a feature.") != std::string::npos);
  CHECK(config_schema("joint_toy").find("\"width\"") != std::string::npos);
  const TempDir folder;
  const std::string path = write_joint_toy(folder, "out", 1);
  CHECK(config_kind(path) == "joint_toy");
  CHECK_THROWS_WITH(run_train(train_of(path, {"/joint_toy/widht=3"})),
                    Catch::Matchers::Contains("did you mean"));
}

}  // namespace
}  // namespace dalle2::test
