// SPDX-License-Identifier: MIT
#include "config/resume_changes.h"

#include "config/minimal_prior.h"

namespace dalle2 {
namespace {

using Lines = std::vector<std::string>;

/// What changes between the smallest decoder config with some values assigned, and with others.
ConfigChanges changed(const Lines& saved, const Lines& current) {
  return compare_for_resume(read_with(saved, false, /*check_available=*/false).full_json,
                            read_with(current, false, /*check_available=*/false).full_json);
}

ConfigChanges prior_changed(const Lines& saved, const Lines& current) {
  return compare_for_resume(read_prior(saved).full_json, read_prior(current).full_json);
}

void expect_meaning(const ConfigChanges& changes, const Lines& lines) {
  CHECK(changes.meaning == lines);
  CHECK(changes.other.empty());
}

void expect_other(const ConfigChanges& changes, const Lines& lines) {
  CHECK(changes.other == lines);
  CHECK(changes.meaning.empty());
}

}  // namespace

TEST_CASE("what gives a decoder's weights another meaning is told with both values") {
  const std::pair<std::string, std::string> assigned_and_saved[] = {
      {"/decoder/timesteps=500", "1000"},
      {"/decoder/predict_v=true", "false"},
      {R"(/decoder/loss_type="l1")", R"("l2")"},
      {"/decoder/auto_normalize_img=false", "true"},
      {"/decoder/channels=1", "3"},
      {"/decoder/unets/0/dim_mults=[1,2,4]", "[1,2]"}};
  for (const auto& [assignment, saved] : assigned_and_saved) {
    const size_t equals = assignment.find('=');
    expect_meaning(changed({}, {assignment}),
                   {fmt::format("{}: the checkpoint has {}, this config {}",
                                assignment.substr(0, equals),
                                saved,
                                assignment.substr(equals + 1))});
  }
  expect_meaning(changed({}, {"/decoder/unets/0/dim=32", "/decoder/unets/0/attn_heads=8"}),
                 {"/decoder/unets/0/dim: the checkpoint has 16, this config 32",
                  "/decoder/unets/0/attn_heads: the checkpoint has 16, this config 8"});
  expect_meaning(
      changed({R"(/decoder/beta_schedule=["cosine"])"}, {R"(/decoder/beta_schedule=["sigmoid"])"}),
      {R"(/decoder/beta_schedule: the checkpoint has ["cosine"], this config ["sigmoid"])"});
  expect_meaning(changed({}, cascade({})),
                 {"/decoder/unets: the checkpoint has 1 entry, this config 2 entries",
                  "/decoder/image_sizes: the checkpoint has [16], this config [16,32]"});
}

TEST_CASE("what gives the data another meaning is told") {
  expect_meaning(changed({"/seed=1"}, {"/seed=2"}), {"/seed: the checkpoint has 1, this config 2"});
  expect_meaning(changed({}, {R"(/data/splits={"train": 0.8, "val": 0.1, "test": 0.1})"}),
                 {"/data/splits/train: the checkpoint has 0.75, this config 0.8",
                  "/data/splits/val: the checkpoint has 0.15, this config 0.1"});
  expect_meaning(changed({}, {"/data/end_shard=99"}),
                 {"/data/end_shard: the checkpoint has 9999999, this config 99"});
  expect_meaning(changed({R"(/data/preprocessing={"Resize": {"size": 16}, "ToTensor": true})"},
                         {R"(/data/preprocessing={"Resize": {"size": 32}, "ToTensor": true})"}),
                 {R"(/data/preprocessing: the checkpoint has )"
                  R"({"Resize":{"size":[16],"interpolation":"bilinear"},"ToTen..., this config )"
                  R"({"Resize":{"size":[32],"interpolation":"bilinear"},"ToTen...)"});
  expect_meaning(prior_changed({}, {"/train/random_seed=9"}),
                 {"/seed (/train/random_seed): the checkpoint has 0, this config 9"});
  expect_meaning(prior_changed({}, {"/data/num_data_points=1000"}),
                 {"/data/num_data_points: the checkpoint has 250000000, this config 1000"});
}

TEST_CASE("changes of the order of an epoch's samples are listed apart") {
  const ConfigChanges changes =
      changed({}, {"/data/shuffle_train=false", "/data/resample_train=true", "/train/lr=1e-3"});
  CHECK(changes.meaning.empty());
  CHECK(changes.order == Lines{"/data/shuffle_train: the checkpoint has true, this config false",
                               "/data/resample_train: the checkpoint has false, this config true"});
  CHECK(changes.other.size() == 3);
}

TEST_CASE("what may change is told apart") {
  expect_other(changed({}, {"/train/lr=1e-3", "/train/epochs=30", "/data/batch_size=8"}),
               {"/data/batch_size: the checkpoint has 64, this config 8",
                "/train/lr: the checkpoint has 0.0001, this config 0.001",
                "/train/epochs: the checkpoint has 20, this config 30"});
  expect_other(changed({}, {"/data/webdataset_base_url=elsewhere/{}.tar"}),
               {R"(/data/webdataset_base_url: the checkpoint has "shards/{}.tar", this config )"
                R"("elsewhere/{}.tar")"});
  expect_other(changed({}, {R"(/tracker/log={"log_type": "tensorboard", "log_dir": "tb"})"}),
               {R"(/tracker/log/log_type: the checkpoint has "console", this config "tensorboard")",
                R"(/tracker/log/log_dir: the checkpoint has null, this config "tb")"});
  expect_other(changed({}, {"/train/min_snr_gamma=5", "/train/loss_weighting=cosmap"}),
               {"/train/min_snr_gamma: the checkpoint has null, this config 5.0",
                R"(/train/loss_weighting: the checkpoint has "none", this config "cosmap")"});
  const char* const harmless[] = {
      "/decoder/sample_timesteps=50",
      "/decoder/ddim_sampling_eta=0.5",
      "/decoder/use_dynamic_thres=true",
      "/decoder/dynamic_thres_percentile=0.9",
      "/decoder/image_cond_drop_prob=0.2",
      "/decoder/text_cond_drop_prob=0.2",
      "/decoder/p2_loss_weight_gamma=0.5",
      "/decoder/unets/0/checkpoint_during_training=true",
      "/decoder/unets/0/channels=1",
      R"(/data/preprocessing={"RandomHorizontalFlip": true, "ToTensor": true})"};
  for (const std::string assignment : harmless) {
    CAPTURE(assignment);
    const ConfigChanges changes = changed({}, {assignment});
    CHECK(changes.meaning.empty());
    CHECK(changes.other.size() == 1);
  }
  CHECK(prior_changed({}, {"/prior/net/attn_dropout=0.1"}).meaning.empty());
  CHECK(prior_changed({}, {"/prior/cond_drop_prob=0.1"}).meaning.empty());
  CHECK(prior_changed({}, {"/prior/image_embed_scale=2"}).meaning ==
        Lines{"/prior/image_embed_scale: the checkpoint has null, this config 2.0"});
}

TEST_CASE("two forms of one value are no change") {
  const auto same = [&](const Lines& assignments) {
    const ConfigChanges changes = changed({}, assignments);
    return changes.meaning.empty() && changes.other.empty();
  };
  CHECK(same({"/decoder/image_sizes=null", "/decoder/image_size=16"}));
  CHECK(same({"/train/lr=[1e-4]"}));
  CHECK(same({"/train/max_grad_norm=[0.5]", "/decoder/learned_variance=[true]"}));
  CHECK_FALSE(same({"/train/lr=[2e-4]"}));
  // A single value of learned_variance is the first unet's alone.
  const Lines two = cascade({});
  CHECK(changed(two, cascade({"/decoder/learned_variance=[true, false]"})).meaning.empty());
  CHECK(changed(two, cascade({"/decoder/learned_variance=[true, true]"})).meaning ==
        Lines{"/decoder/learned_variance: the checkpoint has true, this config [true,true]"});
  expect_meaning(compare_for_resume(R"({"decoder": {"timesteps": 1000.0}, "train": {"lr": 1}})",
                                    R"({"decoder": {"timesteps": 1000}, "train": {"lr": 1.0}})"),
                 {});
}

TEST_CASE("adapters of another shape change the meaning, adapters where none were do not") {
  const Lines none;
  const Lines four = {"/train/lora/rank=4"};
  expect_other(changed(none, four), {"/train/lora/rank: the checkpoint has 0, this config 4"});
  expect_meaning(changed(four, {"/train/lora/rank=8"}),
                 {"/train/lora/rank: the checkpoint has 4, this config 8"});
  expect_meaning(changed(four, {"/train/lora/rank=4", "/train/lora/alpha=2"}),
                 {"/train/lora/alpha: the checkpoint has null, this config 2.0"});
  expect_other(changed(four, {"/train/lora/rank=4", "/train/lora/dropout=0.5"}),
               {"/train/lora/dropout: the checkpoint has 0.0, this config 0.5"});
}

TEST_CASE("a config of the reference is compared as far as it goes") {
  // As the reference writes it: keys that are missing have their defaults.
  expect_meaning(compare_for_resume(kMinimalConfig, read_with({}).full_json), {});
  expect_meaning(
      compare_for_resume(kMinimalConfig, read_with({"/decoder/predict_v=true"}).full_json),
      {"/decoder/predict_v: the checkpoint has false, this config true"});
  // One that is refused here: only keys that both have are compared.
  const std::string refused =
      R"({"decoder": {"timesteps": 500, "colour": 1}, "train": {"lr": 7}, "seed": 0})";
  const ConfigChanges changes = compare_for_resume(refused, read_with({}).full_json);
  CHECK(changes.meaning == Lines{"/decoder/timesteps: the checkpoint has 500, this config 1000"});
  CHECK(changes.other == Lines{"/train/lr: the checkpoint has 7, this config 0.0001"});
  // A prior's file without a seed at the root, which the reference's has in `train`.
  std::string old = read_prior({"/train/random_seed=5"}).full_json;
  const size_t seed = old.find("\"seed\": 5");
  REQUIRE(seed != std::string::npos);
  old.replace(seed, 9, "\"colour\": 20");
  expect_meaning(compare_for_resume(old, read_prior({"/seed=5"}).full_json), {});
}

TEST_CASE("a prior's seed is told once, by both of its names") {
  const Lines told = {"/seed (/train/random_seed): the checkpoint has 3, this config 5"};
  expect_meaning(prior_changed({"/seed=3"}, {"/seed=5"}), told);
  expect_meaning(prior_changed({"/train/random_seed=3"}, {"/train/random_seed=5"}), told);
  expect_meaning(prior_changed({"/seed=3"}, {"/train/random_seed=5"}), told);
  // Of a file that this version cannot read.
  const std::string foreign = R"({"prior": {"colour": 1}, "train": {"random_seed": 3}})";
  expect_meaning(compare_for_resume(foreign, read_prior({"/seed=5"}).full_json), told);
}

TEST_CASE("a CLIP is known by its sha256, wherever its file lies") {
  const auto clip = [](const std::string& model, const std::string& sha256) {
    return Lines{R"(/prior/clip={"model": ")" + model + R"(", "sha256": )" + sha256 + "}",
                 "/data/text_url=null",
                 "/data/meta_url=captions.jsonl"};
  };
  expect_other(prior_changed(clip("a.pth", "\"1\""), clip("b.pth", "\"1\"")),
               {R"(/prior/clip/model: the checkpoint has "a.pth", this config "b.pth")"});
  expect_meaning(prior_changed(clip("a.pth", "\"1\""), clip("a.pth", "\"2\"")),
                 {R"(/prior/clip/sha256: the checkpoint has "1", this config "2")"});
  expect_other(prior_changed(clip("a.pth", "\"1\""), clip("a.pth", "null")), {});
}

TEST_CASE("the places of the run's own files are no change that is told") {
  expect_other(changed({},
                       {"/tracker/data_path=elsewhere",
                        "/tracker/overwrite_data_path=true",
                        R"(/tracker/load={"load_from": "local", "file_path": "a.pth"})",
                        R"(/tracker/save={"save_to": "local", "save_latest_to": "b.pth"})",
                        "/train/lr=0.001"}),
               {"/train/lr: the checkpoint has 0.0001, this config 0.001"});
}

TEST_CASE("a text that is no config gives no changes, and another kind of run is one") {
  const std::string decoder = read_with({}).full_json;
  for (const std::string text : {"", "{", "[1]", "null", "\"decoder\"", "\xff"}) {
    CAPTURE(text);
    expect_meaning(compare_for_resume(text, decoder), {});
    expect_meaning(compare_for_resume(decoder, text), {});
  }
  const std::string deep = std::string(1000000, '[') + std::string(1000000, ']');
  expect_meaning(compare_for_resume("{\"decoder\": " + deep + "}", decoder), {});
  expect_meaning(compare_for_resume(read_prior({}).full_json, decoder),
                 {"/decoder: only this config has this key",
                  "/prior: only the checkpoint has this "
                  "key"});
}

}  // namespace dalle2
