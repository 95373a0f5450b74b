// SPDX-License-Identifier: MIT
// Averages from which one is chosen after training: in a decoder's checkpoints and in their own
// files.

#include <catch2/catch.hpp>

#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/post_hoc.h"
#include "support/temp_dir.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

using Catch::Contains;

DecoderTrainConfig averaging_config(const test::TrainerFixture& fixture) {
  DecoderTrainConfig config = fixture.train_config();
  config.use_ema = false;
  config.post_hoc_ema.save_every_n_steps = 2;
  return config;
}

void train_all_unets(DecoderTrainer& trainer, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) {
    for (int64_t unet = 1; unet <= trainer.num_unets(); ++unet) {
      if (!trainer.is_trained(unet)) continue;
      trainer.step(test::drawn_inputs(2, step), unet, make_generator({0, "t", 0, step}, at::kCPU));
      trainer.update(unet);
    }
  }
}

/// Files of the averages after steps 2, 4 and 6.
std::vector<std::string> files_of_run(DecoderTrainer& trainer, const test::TempDir& folder) {
  std::vector<std::string> paths;
  for (int64_t step = 2; step <= 6; step += 2) {
    train_all_unets(trainer, step - 2, step);
    paths.push_back(folder / fmt::format("step{}.pth", step));
    write_pth(paths.back(),
              trainer.post_hoc_state(
                  {{"config", "{}"}, {"clip_merges", "a b"}, {"clip_weights_sha256", "12"}}));
  }
  return paths;
}

TEST_CASE("averages of other widths than the run's are refused") {
  DecoderTrainConfig config = averaging_config(test::cascade());
  const Value state = test::cascade().trainer(config)->state();
  config.post_hoc_ema.sigmas = {0.05, 0.2};
  CHECK_THROWS_WITH(test::cascade().trainer(config)->load_state(state),
                    Contains("/post_hoc_ema/0/averages") && Contains("other widths"));
}

TEST_CASE("a checkpoint without such averages starts them over") {
  DecoderTrainConfig config = averaging_config(test::cascade());
  config.post_hoc_ema.save_every_n_steps.reset();
  const auto without = test::cascade().trainer(config);
  train_all_unets(*without, 0, 2);
  CHECK_FALSE(Cursor(Value(without->state())).has("post_hoc_ema"));
  const auto with = test::cascade().trainer(averaging_config(test::cascade()));
  with->load_state(without->state());
  const Value state = with->state();
  CHECK(Cursor(state).at("post_hoc_ema").at(0).at("step").as_int() == 0);
}

TEST_CASE("the saved average of a width is what the files are combined to") {
  const auto trainer = test::cascade().trainer(averaging_config(test::cascade()));
  const test::TempDir folder;
  const std::vector<std::string> paths = files_of_run(*trainer, folder);
  const Value last = read_pth(paths.back());
  const PostHocResult made = combine_post_hoc({paths[2], paths[0], paths[1]}, {.sigma = 0.1});
  CHECK(made.step == 6);
  CHECK(made.snapshots == 6);
  CHECK(made.missed < 1e-5);
  const Value file = made.model_file;
  CHECK(Cursor(file).at("config").as_string() == "{}");
  CHECK(Cursor(file).at("clip_merges").as_string() == "a b");  // a CLIP's vocabulary
  CHECK(Cursor(file).at("clip_weights_sha256").as_string() == "12");
  const StateDict model = Cursor(file).at("model").as_state_dict();
  for (int64_t unet = 0; unet < trainer->num_unets(); ++unet) {
    const Cursor average = Cursor(last).at("post_hoc_ema").at(static_cast<size_t>(unet));
    for (const auto& [name, expected] :
         average.at("averages").at(1).at("weights").as_state_dict()) {
      const at::Tensor* got = find_tensor(model, fmt::format("unets.{}.{}", unet, name));
      REQUIRE(got != nullptr);
      // Weights of the other files are zero except for rounding of the least squares.
      CHECK(at::allclose(*got, expected, 1e-5, 1e-6));
    }
  }
  // The file loads as a decoder's.
  const auto again = test::cascade().trainer(averaging_config(test::cascade()));
  Decoder decoder = again->decoder();
  const LoadReport report = load_state_dict(*decoder, Cursor(file).at("model").as_state_dict());
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
}

TEST_CASE("an average between the saved ones is the sum with the weights of least squares") {
  const test::TrainerFixture fixture("masked");  // the first unet is not trained
  const auto trainer = fixture.trainer(averaging_config(fixture));
  const test::TempDir folder;
  const std::vector<std::string> paths = files_of_run(*trainer, folder);
  std::vector<PowerProfile> profiles;
  std::vector<StateDict> saved;
  for (size_t i = 0; i < paths.size(); ++i) {
    const Value root = read_pth(paths[i]);
    const Cursor averages = Cursor(root).at("post_hoc_ema").at(1).at("averages");
    for (size_t a = 0; a < 2; ++a) {
      const double sigma = averages.at(a).at("sigma").as_double();
      profiles.push_back({static_cast<int64_t>(2 * i + 2), gamma_of_sigma(sigma)});
      saved.push_back(averages.at(a).at("weights").as_state_dict());
    }
  }
  const PostHocWeights weights = post_hoc_weights(profiles, {4, gamma_of_sigma(0.08)});
  const PostHocResult made = combine_post_hoc(paths, {.sigma = 0.08, .step = 4});
  CHECK(made.missed == Approx(weights.missed));
  const Value file = made.model_file;
  for (size_t t = 0; t < saved[0].size(); ++t) {
    at::Tensor expected = at::zeros_like(saved[0][t].second, at::kDouble);
    for (size_t i = 0; i < saved.size(); ++i)
      expected.add_(saved[i][t].second.to(at::kDouble), weights.weights[i]);
    const at::Tensor got = Cursor(file).at("model").at("unets.1." + saved[0][t].first).as_tensor();
    CHECK(at::equal(got, expected.to(at::kFloat)));
  }
}

TEST_CASE("a checkpoint of a run serves as a file of its averages") {
  const auto trainer = test::cascade().trainer(averaging_config(test::cascade()));
  const test::TempDir folder;
  const std::vector<std::string> paths = files_of_run(*trainer, folder);
  write_pth(folder / "checkpoint.pth", trainer->state());
  const Value a = combine_post_hoc({paths[2]}, {.sigma = 0.07}).model_file;
  const Value b = combine_post_hoc({folder / "checkpoint.pth"}, {.sigma = 0.07}).model_file;
  const StateDict model = Cursor(b).at("model").as_state_dict();
  CHECK(model.size() == state_dict(*trainer->decoder()).size());
  for (const auto& [name, tensor] : Cursor(a).at("model").as_state_dict()) {
    REQUIRE(find_tensor(model, name) != nullptr);
    CHECK(at::equal(*find_tensor(model, name), tensor));
  }
}

TEST_CASE("files that are no averages, of another model or given twice are refused") {
  const auto trainer = test::cascade().trainer(averaging_config(test::cascade()));
  const test::TempDir folder;
  const std::vector<std::string> paths = files_of_run(*trainer, folder);
  write_pth(folder / "model.pth", trainer->model_state());
  CHECK_THROWS_WITH(combine_post_hoc({folder / "model.pth"}, {.sigma = 0.1}),
                    Contains("no file of averages") && Contains("save_every_n_steps"));
  CHECK_THROWS_WITH(
      combine_post_hoc({paths[0], paths[0]}, {.sigma = 0.1}),
      Contains("step 2 are also in an earlier file") && Contains("each file of the run only once"));
  CHECK_THROWS_WITH(combine_post_hoc(paths, {.sigma = 0.1, .step = 7}),
                    Contains("--step: expected 1 to 6") && Contains("got 7"));
  CHECK_THROWS_WITH(combine_post_hoc(paths, {.sigma = 0.4}), Contains("up to 0.288, got 0.4"));
  const test::TrainerFixture masked("masked");
  const auto other = masked.trainer(averaging_config(masked));
  train_all_unets(*other, 0, 3);
  write_pth(folder / "other.pth", other->post_hoc_state());
  CHECK_THROWS_WITH(combine_post_hoc({paths[0], folder / "other.pth"}, {.sigma = 0.1}),
                    Contains("other.pth") && Contains("model"));
}

}  // namespace
}  // namespace dalle2
