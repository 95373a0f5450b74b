// SPDX-License-Identifier: MIT
// Files of older versions of dalle2-pytorch: what is made of them, and what is refused.
#include <torch/torch.h>
#include <algorithm>
#include <fstream>

#include "checkpoint/module_state.h"
#include "checkpoint/pickle/value_json.h"
#include "run/checkpoints/model_weights.h"
#include "run/tiny_decoder.h"
#include "support/fixture.h"
#include "support/plans.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

json small_prior() {
  return {{"net",
           {{"dim", 16},
            {"depth", 1},
            {"dim_head", 8},
            {"heads", 2},
            {"num_timesteps", 10},
            {"max_text_len", 4}}},
          {"image_embed_dim", 16},
          {"timesteps", 10},
          {"cond_drop_prob", 0.1}};
}

/// A config of which only the section of the model is right.
std::string write_config(const TempDir& folder, const char* kind, const json& section) {
  const std::string path = folder / "config.json";
  std::ofstream(path) << json({{kind, section}, {"data", {{"batch_size", "many"}}}}).dump();
  return path;
}

/// A file with weights of an old version, and its config. @param network makes them
Dict file_of(const torch::nn::Module& model, const char* version, const json& config) {
  Dict file;
  file.set("model", to_dict(state_dict(model)));
  if (version != nullptr) file.set("version", version);
  if (!config.is_null()) file.set("config", value_of_json(config.dump()));
  return file;
}

DiffusionPrior prior_of_version(const char* version) {
  PriorConfig config;
  config.net.dim = config.image_embed_dim = 16;
  config.net.depth = 1;
  config.net.dim_head = 8;
  config.net.heads = 2;
  config.net.max_text_len = 4;
  config.net.num_timesteps = config.timesteps = 10;
  config.written_by = parse_version(version, "");
  DiffusionPrior prior(plan_prior(config));
  fill_parameters(*prior->net());
  prior->eval();
  return prior;
}

at::Tensor answer(DiffusionPrior& prior) {
  const torch::NoGradGuard no_grad;
  PriorConditions given;
  given.text_embed = wave({2, 16}, 0.77);
  given.text_encodings = wave({2, 3, 16}, 0.5);
  return prior->net()->forward(wave({2, 16}, 0.31), at::tensor({1, 7}), given);
}

TEST_CASE("of a prior's own config only the section of the model counts") {
  const TempDir folder;
  DiffusionPrior prior = prior_of_version("1.1.0");
  const Value bare = to_dict(state_dict(*prior));
  DiffusionPrior loaded = load_prior({.checkpoint_path = "prior.pth",
                                      .config_path = write_config(folder, "prior", small_prior()),
                                      .written_by = "1.1.0"},
                                     bare);
  CHECK(at::equal(answer(loaded), answer(prior)));
}

TEST_CASE("of a decoder's config only what is drawn with counts, stored or given") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  const Decoder decoder(
      parse_decoder_config(config.dump(), "c", {.overrides = {}, .check_available = false}).plan);
  config["train"]["lr"] = "fast";
  config["data"]["batch_size"] = -1;
  config["data"]["range"] = 4000;
  config["tracker"] = "none";
  const auto reads = [&](const Dict& file, const std::optional<std::string>& path) {
    ShardDataConfig data;
    load_decoder({.checkpoint_path = "d.pth", .config_path = path}, file, &data);
    CHECK(data.range == 4000);
  };
  const std::string path = folder / "given.json";
  std::ofstream(path) << config.dump();
  reads(file_of(*decoder, "1.15.6", config), std::nullopt);
  reads(file_of(*decoder, "1.15.6", nullptr), path);
  config["data"]["range"] = "wide";
  CHECK_THROWS_WITH(load_decoder({.checkpoint_path = "d.pth"}, file_of(*decoder, "1.15.6", config)),
                    Contains("1 problem") && Contains("/data/range"));
}

TEST_CASE("a prior's training file gives its weights another meaning only where it allows that") {
  const TempDir folder;
  const std::string path = folder / "config.json";
  const auto with_x_start = [](bool predict_x_start) {
    json prior = small_prior();
    prior["predict_x_start"] = predict_x_start;
    return json({{"prior", prior}, {"written_by", nullptr}});
  };
  const Value file = file_of(*prior_of_version("1.15.6"), "1.15.6", with_x_start(true));
  json config = with_x_start(false);
  std::ofstream(path) << config.dump();
  const ModelSource source = {.checkpoint_path = "prior.pth", .config_path = path};
  CHECK_THROWS_WITH(load_prior(source, file), Contains("/prior/predict_x_start"));
  config["train"]["allow_changed_config"] = true;
  std::ofstream(path) << config.dump();
  CHECK_FALSE(load_prior(source, file)->plan().config.predict_x_start);
}

TEST_CASE("a prior that does not say its version is refused where several fit") {
  const TempDir folder;
  const Value bare = to_dict(state_dict(*prior_of_version("1.1.0")));
  CHECK_THROWS_WITH(load_prior({.checkpoint_path = "prior.pth",
                                .config_path = write_config(folder, "prior", small_prior()),
                                .version_option = "--prior-written-by"},
                               bare),
                    Contains("its tensors are those of 0.23.0 to 1.8.4") &&
                        Contains("Set --prior-written-by to the version that wrote it"));
}

TEST_CASE("a version in the config that is no text, or is not that of the option, is refused") {
  const TempDir folder;
  const std::string path = folder / "config.json";
  const Value bare = to_dict(state_dict(*prior_of_version("1.1.0")));
  const auto load = [&](const json& version) {
    std::ofstream(path) << json({{"prior", small_prior()}, {"written_by", version}}).dump();
    load_prior({.checkpoint_path = "prior.pth", .config_path = path, .written_by = "1.1.0"}, bare);
  };
  CHECK_NOTHROW(load("1.1.0"));
  CHECK_THROWS_WITH(
      load(1.0),
      Contains("config.json: /written_by: expected a string such as") && Contains("got 1.0"));
  CHECK_THROWS_WITH(
      load("1.0.2"),
      Contains("--written-by is 1.1.0, and ") && Contains("config.json: /written_by is 1.0.2"));
}

TEST_CASE(
    "schedules are those of the config, though a file has none or has them in half precision") {
  const TempDir folder;
  DiffusionPrior prior = prior_of_version("1.1.0");
  StateDict weights = state_dict(*prior);
  std::erase_if(weights,
                [](const auto& item) { return item.first.starts_with("noise_scheduler."); });
  DiffusionPrior loaded = load_prior({.checkpoint_path = "prior.pth",
                                      .config_path = write_config(folder, "prior", small_prior()),
                                      .written_by = "1.1.0"},
                                     to_dict(weights));
  CHECK(at::equal(answer(loaded), answer(prior)));
  const json config = tiny_decoder_config(folder.path());
  const Decoder decoder(
      parse_decoder_config(
          config.dump(), "config", {.overrides = {}, .strict = false, .check_available = false})
          .plan);
  StateDict half = state_dict(*decoder);
  for (auto& [name, tensor] : half) tensor = tensor.to(at::kHalf);
  Dict file;
  file.set("model", to_dict(half));
  file.set("config", value_of_json(config.dump()));
  const StateDict drawn_with = state_dict(*load_decoder({.checkpoint_path = "half.pth"}, file));
  const std::string name = "noise_schedulers.0.posterior_mean_coef1";
  CHECK(at::equal(*find_tensor(drawn_with, name), *find_tensor(state_dict(*decoder), name)));
}

TEST_CASE("a config that gives no prior is named, and nothing that it does not hold") {
  const TempDir folder;
  json section = small_prior();
  section["net"]["dim"] = "wide";
  const std::string path = write_config(folder, "prior", section);
  const Value bare = to_dict(state_dict(*prior_of_version("1.1.0")));
  CHECK_THROWS_WITH(
      described_checkpoint(bare, "prior.pth", {.config_path = path, .written_by = "1.1.0"}),
      Catch::Matchers::StartsWith(path + ": 1 problem\n  /prior/net/dim: "));
  // What only a training asks for, such as the default of eval_timesteps, which is above the 10 steps.
  const json config = {{"prior", small_prior()},
                       {"data", {{"splits", json::object()}, {"batch_size", 4}}},
                       {"train", json::object()}};
  const Value file = file_of(*prior_of_version("1.1.0"), "1.1.0", config);
  CHECK_NOTHROW(described_checkpoint(file, "prior.pth", {.written_by = "1.1.0"}));
}

TEST_CASE("a file that gets its config and version needs no options any more") {
  const TempDir folder;
  DiffusionPrior prior = prior_of_version("1.1.0");
  const Value described = described_checkpoint(
      to_dict(state_dict(*prior)),
      "prior.pth",
      {.config_path = write_config(folder, "prior", small_prior()), .written_by = "1.1.0"});
  DiffusionPrior loaded = load_prior({.checkpoint_path = "prior.pth"}, described);
  CHECK(at::equal(answer(loaded), answer(prior)));
  CHECK(Cursor(described).at("config").at("prior").at("image_size").as_int() == 224);
}

TEST_CASE("a prior of 1.8 becomes one of 1.15.6 that answers the same") {
  const TempDir folder;
  DiffusionPrior prior = prior_of_version("1.8.4");
  const Value file = file_of(*prior, "1.8.4", nullptr);
  const std::string config = write_config(folder, "prior", small_prior());
  const Value described = described_checkpoint(file, "prior.pth", {.config_path = config});
  for (const Value made :
       {described_checkpoint(file, "prior.pth", {.config_path = config, .to_last_version = true}),
        described_checkpoint(described, "described.pth", {.to_last_version = true})}) {
    CHECK(Cursor(made).at("version").as_string() == "1.15.6");
    DiffusionPrior loaded = load_prior({.checkpoint_path = "made.pth"}, made);
    expect_close(answer(loaded), answer(prior), 1e-6, "answer");
    CHECK(loaded->plan().config.cond_drop_prob == 0);
  }
}

TEST_CASE("a config whose version is null says nothing against that of the file") {
  const TempDir folder;
  DiffusionPrior prior = prior_of_version("1.9.0");
  const std::string config = folder / "config.json";
  std::ofstream(config) << json({{"prior", small_prior()}, {"written_by", nullptr}}).dump();
  DiffusionPrior loaded = load_prior({.checkpoint_path = "prior.pth", .config_path = config},
                                     file_of(*prior, "1.9.0", nullptr));
  CHECK(to_text(loaded->plan().config.written_by) == "1.9.0");
}

TEST_CASE("a prior whose attention was by dot products has no equal in 1.15.6") {
  const TempDir folder;
  const Value file = file_of(*prior_of_version("1.1.0"), "1.1.0", nullptr);
  CHECK_THROWS_WITH(
      described_checkpoint(
          file,
          "prior.pth",
          {.config_path = write_config(folder, "prior", small_prior()), .to_last_version = true}),
      Contains(
          "weights of dalle2-pytorch 1.1.0 have no equal in 1.15.6: attention was by dot products"));
}

TEST_CASE("a unet of 1.4.0 becomes one of 1.15.6 that answers the same") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  config["written_by"] = "1.4.0";
  const auto loaded = parse_decoder_config(
      config.dump(), "config", {.overrides = {}, .strict = false, .check_available = false});
  Decoder decoder(loaded.plan);
  fill_parameters(*decoder->unet(1));
  decoder->eval();
  const Value file = file_of(*decoder, "1.4.0", config);
  const Value made = described_checkpoint(file, "decoder.pth", {.to_last_version = true});
  const Cursor section = Cursor(made).at("config").at("decoder");
  for (const char* unknown : {"image_sizes", "vae", "zero_terminal_snr"})
    CHECK_FALSE(section.has(unknown));
  Decoder other = load_decoder({.checkpoint_path = "made.pth"}, made);
  UnetConditions given;
  given.image_embed = wave({2, 3}, 0.9);
  const torch::NoGradGuard no_grad;
  const auto answer_of = [&](Decoder& of) {
    return of->unet(1)->forward(wave({2, 3, 8, 8}, 0.17), at::tensor({1, 20}), given);
  };
  expect_close(answer_of(other), answer_of(decoder), 1e-6, "answer");
}

bool is_schedule_entry(const std::pair<std::string, at::Tensor>& item) {
  return item.first.find("noise_scheduler") != std::string::npos;
}

TEST_CASE(
    "a file of 1.15.6 has the schedules of its config, whatever those of its older version were") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  config["written_by"] = "1.4.0";
  config["decoder"]["unets"].push_back(tiny_unet(8));
  config["decoder"]["image_sizes"] = {4, 8};
  config["decoder"]["sample_timesteps"] = {3, 3};
  config["decoder"].erase("image_size");
  config["decoder"]["use_noise_for_lowres_cond"] = true;
  const Decoder decoder(
      parse_decoder_config(
          config.dump(), "config", {.overrides = {}, .strict = false, .check_available = false})
          .plan);
  DiffusionPrior prior = prior_of_version("1.8.4");
  const std::pair<StateDict, json> given[] = {
      {state_dict(*decoder), config},
      {state_dict(*prior), {{"prior", small_prior()}, {"written_by", "1.8.4"}}}};
  for (const auto& [whole, of] : given) {
    StateDict schedules = whole, rest = whole, half = whole;
    std::erase_if(schedules, std::not_fn(is_schedule_entry));
    std::erase_if(rest, is_schedule_entry);
    for (auto& [name, tensor] : half) tensor = tensor.to(at::kHalf);
    CHECK(std::ssize(schedules) == (of.contains("prior") ? 13 : 39));
    for (const StateDict& weights : {rest, half}) {
      Dict file;
      file.set("model", to_dict(weights));
      file.set("version", of.at("written_by").get<std::string>());
      file.set("config", value_of_json(of.dump()));
      const Value made = described_checkpoint(file, "old.pth", {.to_last_version = true});
      const StateDict model = Cursor(made).at("model").as_state_dict();
      CHECK(std::ranges::count_if(model, is_schedule_entry) == std::ssize(schedules));
      for (const auto& [name, tensor] : schedules) {
        INFO(name);
        REQUIRE(find_tensor(model, name) != nullptr);
        CHECK(at::equal(*find_tensor(model, name), tensor));
      }
    }
  }
}

TEST_CASE("a run refuses weights of a version whose networks its config does not describe") {
  const TempDir folder;
  json config = tiny_decoder_config(folder.path());
  config["written_by"] = "1.1.0";
  const ReadOptions options = {.overrides = {}, .strict = false, .check_available = false};
  const auto old = parse_decoder_config(config.dump(), "config", options);
  const Value file = file_of(*Decoder(old.plan), "1.1.0", nullptr);
  const Cursor root(file, "latest.pth");
  CHECK_NOTHROW(check_version(root, "decoder", old.full_json));
  config.erase("written_by");
  CHECK_THROWS_WITH(
      check_version(
          root, "decoder", parse_decoder_config(config.dump(), "config", options).full_json),
      Contains("latest.pth: dalle2-pytorch 1.1.0 wrote it") &&
          Contains("Add \"written_by\": \"1.1.0\" to the config"));
}

}  // namespace
}  // namespace dalle2::test
