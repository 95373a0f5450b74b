// SPDX-License-Identifier: MIT
// Averages of diffusers' kind: their saved state, and a decoder that is trained with them.

#include "checkpoint/archive/safetensors.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "checkpoint/post_hoc.h"
#include "io/files/atomic_file.h"
#include "optim/flat_module.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"
#include "trainer/averages/weight_average.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

using Catch::Contains;

/// The module that make_ema_model.py saves.
struct Tiny : torch::nn::Module {
  struct Inner : torch::nn::Module {
    Inner() {
      register_parameter("weight", at::zeros({2, 4}));
      register_parameter("bias", at::zeros({2}));
    }
  };
  Tiny() {
    register_parameter("gain", at::zeros({4}));
    register_buffer("seen", at::ones({2}));
    register_module("inner", std::make_shared<Inner>());
  }
};

/// A network of any class with diffusers' average, without a trainer.
template <class Network>
struct Averaged {
  template <class... Args>
  explicit Averaged(const EmaConfig& ema, const Args&... args)
      : network(args...), average(network, online, [&] {
          AveragesConfig config;
          config.ema = ema;
          config.ema.kind = EmaKind::diffusers;
          return config;
        }()) {}

  Value state() const { return average.diffusers_state(); }
  void load(const Value& state) { average.read_diffusers(Cursor(state, "a.pth")); }
  at::Tensor averaged(const std::string& name) const {
    const WeightAverage::InPlace in_place(average);
    return network.named_parameters()[name].detach();
  }

  Network network;
  FlatParameters online{network, names_of(network)};
  WeightAverage average;

 private:
  static std::vector<std::string> names_of(const torch::nn::Module& module) {
    std::vector<std::string> names;
    for (const auto& item : module.named_parameters()) names.push_back(item.key());
    return names;
  }
};

StateDict one_parameter(int64_t size = 2) {
  return {{"weight", at::ones({size})}};
}

std::vector<std::string> keys_of(const Value& state) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : state.as_dict().items) keys.push_back(key.as_string());
  return keys;
}

DecoderTrainConfig diffusers_config(const test::TrainerFixture& fixture) {
  DecoderTrainConfig config = fixture.train_config();
  config.ema.kind = EmaKind::diffusers;
  config.ema.decay = 0.7;
  return config;
}

TEST_CASE("an average of diffusers' kind copies what needs no gradient") {
  struct Network : test::FlatModule {
    Network() : FlatModule({{"weight", at::zeros({2})}, {"frozen", at::zeros({2})}}) {
      parameter("frozen").set_requires_grad(false);
    }
  };
  Averaged<Network> made(EmaConfig{});
  for (int64_t step = 0; step < 3; ++step) {
    for (const char* key : {"weight", "frozen"}) made.network.parameter(key).detach().fill_(step);
    made.average.update();
    made.average.count();
    CHECK(at::equal(made.averaged("frozen"), made.network.parameter("frozen")));
  }
  CHECK_FALSE(at::equal(made.averaged("weight"), made.network.parameter("weight")));
}

TEST_CASE("the state of an average has EMAModel's keys in its order, and the names") {
  auto expected =
      test::load_fixture("ema_model/defaults").json.at("keys").get<std::vector<std::string>>();
  expected.emplace_back("parameter_names");
  CHECK(keys_of(Averaged<test::FlatModule>({}, one_parameter()).state()) == expected);
}

TEST_CASE("a state that EMAModel refuses is refused with its text, and changes nothing") {
  const auto cases = test::load_fixture("ema_model/refusals").json.at("load_state_dict");
  REQUIRE(cases.size() == 11);
  for (const auto& refusal : cases) {
    Averaged<test::FlatModule> made({}, one_parameter());
    nlohmann::json json = {{"optimization_step", 5}};
    json[refusal.at("key").get<std::string>()] = refusal.at("value");
    const Value state = value_of_json(json.dump());
    INFO(refusal.dump());
    CHECK_THROWS_WITH(made.load(state),
                      Catch::Contains(refusal.at("message").get<std::string>()) &&
                          Catch::Contains("a.pth: /" + refusal.at("key").get<std::string>()));
    CHECK(Cursor(made.state()).at("optimization_step").as_int() == 0);
    CHECK(at::equal(made.averaged("weight"), at::ones({2})));
  }
}

TEST_CASE("a decay of 0 and one of 1 are taken") {
  for (const double decay : {0.0, 1.0}) {
    Averaged<test::FlatModule> made({}, one_parameter());
    Value state = made.state();
    state.as_dict().set("decay", decay);
    CHECK_NOTHROW(made.load(state));
  }
}

TEST_CASE("averages of other parameters are refused, and missing keys keep their values") {
  Averaged<test::FlatModule> made({}, one_parameter());
  StateDict two = one_parameter();
  two.emplace_back("bias", at::ones({2}));
  CHECK_THROWS_WITH(made.load(Averaged<test::FlatModule>({}, two).state()),
                    "a.pth: /shadow_params: expected the averages of 1 parameters, got 2");
  CHECK_THROWS_WITH(made.load(Averaged<test::FlatModule>({}, one_parameter(3)).state()),
                    "a.pth: /shadow_params/0: expected shape [2], got [3]");
  made.average.update();
  made.average.count();
  made.load(value_of_json(R"({"power": 1})"));
  CHECK(Cursor(made.state()).at("optimization_step").as_int() == 1);
  CHECK(at::equal(made.averaged("weight"), at::ones({2})));
  made.load(value_of_json(R"({"optimization_step": 7})"));
  CHECK(made.average.rule().decay() == Approx(8.0 / 17.0));  // of the eighth step
}

TEST_CASE("a folder of save_pretrained is read") {
  const test::Fixture expected = test::load_fixture("ema_model/pretrained_state");
  const std::string folder = test::fixture_folder("ema_model") + "/pretrained";
  const Value saved = value_of_json(read_file(folder + "/config.json"));
  EmaConfig config;
  config.decay = Cursor(saved).at("decay").as_double();
  Averaged<Tiny> made(config);
  load_state_dict(made.network,
                  read_safetensors(folder + "/diffusion_pytorch_model.safetensors").tensors,
                  "",
                  /*strict=*/true,
                  folder);
  made.average.begin_anew();
  made.load(saved);
  const Value state = made.state();
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    CHECK(at::equal(Cursor(state).at("shadow_params").at(i).as_tensor(),
                    expected.tensor(std::to_string(i))));
  }
  CHECK(Cursor(state).at("optimization_step").as_int() ==
        expected.json.at("optimization_step").get<int64_t>());
}

TEST_CASE("a decoder is trained with diffusers' average: it follows each update") {
  DecoderTrainConfig config = diffusers_config(test::cascade());
  config.ema.offload = GENERATE(false, true);
  const auto trainer = test::cascade().trainer(config);
  const auto joined = [](std::vector<at::Tensor> parameters) {
    for (at::Tensor& each : parameters) each = each.detach().flatten();
    return at::cat(parameters);
  };
  const auto weights = [&] { return joined(trainer->decoder()->unet(1)->parameters()); };
  const at::Tensor by_hand = weights();
  DiffusersRule rule(config.ema);
  for (int64_t step = 0; step < 8; ++step) {
    test::train(*trainer, step, step + 1);
    if (step % 2 != 0) continue;
    rule.update(by_hand, weights());
    rule.count();
  }
  CHECK(at::equal(joined(TrainerProbe::averaged(*trainer, 1).values()), by_hand));
  CHECK_FALSE(at::equal(TrainerProbe::averaged(*trainer, 1)[0].value(),
                        trainer->decoder()->unet(1)->parameters()[0]));
  CHECK(trainer->ema_decay(1) == rule.decay());
  const std::string before = test::bits_of(*trainer);
  const Dict model = trainer->model_state();
  CHECK(at::equal(
      model.find("model")->as_dict().find("unets.0.init_conv.convs.0.weight")->as_tensor(),
      TrainerProbe::averaged(*trainer, 1)["init_conv.convs.0.weight"]));
  CHECK(test::bits_of(*trainer) == before);
}

TEST_CASE("a change of the kind or of the options of the average is mentioned") {
  const auto trainer = test::cascade().trainer();
  test::train(*trainer, 0, 4);
  DecoderTrainConfig config = diffusers_config(test::cascade());
  const auto other = test::cascade().trainer(config);
  test::CapturedLog log;
  other->load_state(trainer->state(), false, true, "a.pth");
  CHECK(log.count("no averaged weights 'ema_diffusers'") == 1);
  CHECK(at::equal(TrainerProbe::averaged(*other, 1)[0].value(),
                  trainer->decoder()->unet(1)->parameters()[0]));
  config.ema.decay = 0.5;
  const auto third = test::cascade().trainer(config);
  third->load_state(other->state(), false, true, "b.pth");
  CHECK(log.count("averaged with other options (decay 0.7)") == 2);
  test::train(*third, 0, 30);
  CHECK(third->ema_decay(1).value() == 0.5);
}

TEST_CASE("the weights become their average where update_model_with_ema_every says so") {
  DecoderTrainConfig config = test::cascade().train_config();
  config.ema_update_after_step = 0;
  config.ema_update_every = 1;
  config.update_model_with_ema_every = 3;
  const auto trainer = test::cascade().trainer(config);
  std::vector<bool> equal;
  for (int64_t step = 0; step < 14; step += 2) {
    test::train(*trainer, step, step + 1);
    equal.push_back(at::equal(TrainerProbe::averaged(*trainer, 1)[0].value(),
                              trainer->decoder()->unet(1)->parameters()[0]));
  }
  // The first call copies; of the others the third, sixth, ... copy back.
  CHECK(equal == std::vector<bool>{true, false, false, true, false, false, true});
}

// Averages from which one is chosen after training: in a decoder's checkpoints and in their own
// files.
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
