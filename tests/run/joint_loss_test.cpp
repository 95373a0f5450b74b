// SPDX-License-Identifier: MIT
// A loss that is no mean over the samples, through all that the kinds share.
#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/convert.h"
#include "config/kinds.h"
#include "dist/ranks_in_threads.h"
#include "run/commands.h"
#include "run/joint_toy.h"
#include "run/toy_support.h"
#include "support/tiny_shards.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

TrainJointToyConfig config_with(std::optional<int64_t> max_batch_size = std::nullopt) {
  TrainJointToyConfig config;
  config.train.max_batch_size = max_batch_size;
  config.train.use_ema = false;
  return config;
}

std::unique_ptr<JointToyTrainer> trainer_of(const TrainJointToyConfig& config) {
  torch::manual_seed(3);
  return std::make_unique<JointToyTrainer>(std::make_shared<JointToyModel>(config.joint_toy.width),
                                           config);
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
struct Outcome {
  double loss = 0;
  at::Tensor weights;
};

at::Tensor weights_of(const JointToyTrainer& trainer) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& each : trainer.network().parameters()) flat.push_back(each.flatten());
  return at::cat(flat).detach().clone();
}

Outcome update(JointToyTrainer& trainer, const std::vector<JointToyInputs>& own) {
  trainer.step(own);
  trainer.update();
  return {trainer.last_loss().item<double>(), weights_of(trainer)};
}

Outcome whole() {
  const auto trainer = trainer_of(config_with());
  return update(*trainer, batches({8}));
}

void check_same(const Outcome& found, const Outcome& expected) {
  CHECK(found.loss == Approx(expected.loss).epsilon(1e-5));
  // The optimizer's first step has the rate's size whatever the gradient's: signs are compared.
  CHECK(at::allclose(found.weights, expected.weights, 0, 1e-4));
}

TEST_CASE("a joint loss is that of the whole batch, and no mean of smaller ones") {
  const auto trainer = trainer_of(config_with());
  const at::Tensor expected = trainer->network().parameters()[0].defined()
                                  ? trainer->evaluate(batches({8}).front())
                                  : at::Tensor();
  CHECK(whole().loss == Approx(expected.item<double>()).epsilon(1e-6));
  const auto halves = batches({4, 8});
  const double mean =
      (trainer->evaluate(halves[0]).item<double>() + trainer->evaluate(halves[1]).item<double>()) /
      2;
  CHECK(std::abs(mean - expected.item<double>()) > 0.1);
}

TEST_CASE("chunks and accumulation change neither a joint loss nor its gradients") {
  const Outcome expected = whole();
  for (const std::optional<int64_t> most : {std::optional<int64_t>(), {1}, {3}, {8}}) {
    for (const auto& ends : {std::vector<int64_t>{8}, {4, 8}, {1, 2, 8}}) {
      CAPTURE(most.value_or(0), ends.size());
      const auto trainer = trainer_of(config_with(most));
      check_same(update(*trainer, batches(ends)), expected);
    }
  }
}

TEST_CASE("ranks change neither a joint loss nor its gradients, not even one without samples") {
  const Outcome expected = whole();
  const int size = GENERATE(2, 3);
  const bool one_is_empty = GENERATE(false, true);
  std::mutex mutex;
  std::vector<Outcome> found;
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
    const Outcome outcome = update(*trainer, {own});
    const std::lock_guard lock(mutex);
    found.push_back(outcome);
  });
  REQUIRE(found.size() == static_cast<size_t>(size));
  for (const Outcome& each : found) {
    check_same(each, expected);
    CHECK(at::equal(each.weights, found.front().weights));
  }
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

/// Ten shards of three pictures.
std::string write_config(const TempDir& folder, const std::string& out, int64_t epochs) {
  const json config = {
      {"joint_toy", {{"width", 4}}},
      {"data",
       {{"webdataset_base_url", folder / "shards/{}.tar"},
        {"img_embeddings_url", folder / "img_emb"},
        {"shard_width", 5},
        {"start_shard", 0},
        {"end_shard", 9},
        {"batch_size", 4},
        {"num_workers", 1},
        {"splits", {{"train", 0.8}, {"val", 0.1}, {"test", 0.1}}},
        {"preprocessing", {{"ToTensor", true}}}}},
      {"train", {{"epochs", epochs}, {"log_every_n_updates", 1}, {"grad_accum_every", 2}}},
      {"tracker",
       {{"data_path", folder / out},
        {"overwrite_data_path", true},
        {"log", {{"log_type", "console"}, {"auto_resume", true}}},
        {"load",
         {{"load_from", "local"},
          {"file_path", folder / (out + "/checkpoint.pth")},
          {"only_auto_resume", true}}},
        {"save", {{"save_to", "local"}, {"save_latest_to", folder / (out + "/latest.pth")}}}}},
      {"seed", 5}};
  const std::string path = folder / (out + ".json");
  std::ofstream(path) << config.dump();
  return path;
}

TrainCommand train_of(const std::string& path, const std::vector<std::string>& overrides = {}) {
  TrainCommand command;
  command.config_path = path;
  command.overrides = overrides;
  command.quiet = true;
  return command;
}

StateDict model_in(const TempDir& folder, const std::string& out) {
  const Value checkpoint = read_checkpoint(folder / (out + "/checkpoint.pth"));
  return Cursor(checkpoint, out).at("model").as_state_dict();
}

TEST_CASE(
    "a row in the table of kinds makes a kind that trains on shards, and resumes bit for bit") {
  register_joint_toy();
  const TempDir folder;
  write_tiny_shards(folder.path(), 10, 3);
  const std::string whole = write_config(folder, "whole", 3);
  CHECK(run_train(train_of(whole)) == ExitCode::kDone);
  for (const int64_t epochs : {1, 3}) {
    CHECK(run_train(train_of(write_config(folder, "parts", epochs))) == ExitCode::kDone);
  }
  const StateDict expected = model_in(folder, "whole"), found = model_in(folder, "parts");
  REQUIRE(expected.size() == 5);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(at::equal(expected[i].second, found[i].second));
  }
  const std::vector<double> losses = logged(folder / "whole", "Validation Loss");
  REQUIRE(losses.size() == 3);
  CHECK(losses.back() < losses.front());
  TrainCommand dry = train_of(whole, {"/tracker/data_path=" + (folder / "dry")});
  dry.dry_run = true;
  CHECK(run_train(dry) == ExitCode::kDone);
}

TEST_CASE("what the shared places know of a kind comes from its row") {
  register_joint_toy();
  CHECK(config_docs().find("Numbers of a feature.") != std::string::npos);
  CHECK(config_schema("joint_toy").find("\"width\"") != std::string::npos);
  const TempDir folder;
  const std::string path = write_config(folder, "out", 1);
  CHECK(config_kind(path) == "joint_toy");
  CHECK_THROWS_WITH(run_train(train_of(path, {"/joint_toy/widht=3"})),
                    Catch::Matchers::Contains("did you mean"));
  // Only a VAE has a folder of results.
  TrainCommand clears = train_of(path);
  clears.clear_results = true;
  CHECK_THROWS_WITH(run_train(clears), Catch::Matchers::Contains("--clear-results"));
}

}  // namespace
}  // namespace dalle2::test
