// SPDX-License-Identifier: MIT
#include "config/prior/prior_run_config.h"

#include <fstream>
#include <sstream>

#include "config/clip/clip_run_config.h"
#include "config/minimal_prior.h"
#include "config/resume_changes.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

using Lines = std::vector<std::string>;

const std::string kMinimalVae = R"({
  "vae": {"dim": 16},
  "data": {"folder": "pictures", "image_size": 64, "batch_size": 4},
  "train": {"num_train_steps": 10, "vgg_path": "vgg.pt"},
  "tracker": {"log": {}, "save": {"save_to": "local", "save_latest_to": "latest.pth"}}
})";

/// Reads the smallest config of a VAE with some values assigned (`/pointer=value`).
LoadedVaeConfig read_vae(const std::vector<std::string>& assignments) {
  return parse_vae_config(kMinimalVae, "vae.json", {.overrides = assignments});
}

const Rejects prior_rejects("prior.json", [](const auto& assignments) { read_prior(assignments); });
const Rejects vae_rejects("vae.json", [](const auto& assignments) { read_vae(assignments); });

std::string text_of(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(DALLE2_SOURCE_DIR) + "/tests/config/data/" + name).rdbuf();
  return text.str();
}

TEST_CASE("the reference builds a prior from a full config, which has no null that it refuses") {
  const Json prior = Json::parse(read_prior({}).full_json)["prior"];
  CHECK(prior["image_size"] == 224);
  CHECK(prior["net"]["max_text_len"] == 256);
  CHECK(read_prior({}).warnings.empty());
  CHECK(Json::parse(read_prior({"/prior/image_size=32"}).full_json)["prior"]["image_size"] == 32);
}

TEST_CASE("the reference's example of a prior config is read as it stands") {
  const LoadedPriorConfig loaded =
      parse_prior_config(text_of("reference_prior_example.json"), "example.json", {});
  CHECK(loaded.config.prior.clip.has_value());
  CHECK(loaded.config.data.meta_url.has_value());
  CHECK(loaded.config.prior.net.attn_dropout == 0.05);
  CHECK(loaded.config.train.ema_update_after_step == 50);
  CHECK(loaded.config.train.eval_timesteps == std::vector<int64_t>{64, 1000});
  CHECK(loaded.warnings.empty());
  const LoadedPriorConfig again = parse_prior_config(loaded.full_json, "dump.json", {});
  CHECK(again.full_json == loaded.full_json);
}

TEST_CASE("unknown keys of a prior are errors, elsewhere warnings with a suggestion if near") {
  prior_rejects("/prior/predict_vv=true", R"(no such key; did you mean "predict_v"?)");
  CHECK_THAT(message_of([] { read_prior({"/prior/net/window=3"}); }),
             Catch::Contains("/prior/net/window: no such key; known are: dim depth"));
  const std::string coloured = file_with(kMinimalPrior, {"/train/colour=3"});
  CHECK(parse_prior_config(coloured, "prior.json", {}).warnings.size() == 1);
  CHECK_THAT(message_of([] { read_prior({"/train/colour=3"}, /*strict=*/true); }),
             Catch::Contains("/train/colour"));
}

TEST_CASE("a prior with a CLIP takes captions, and no embeddings of texts") {
  const Lines captions = {
      R"(/prior/clip={"model": "c.pth"})", "/data/text_url=null", "/data/meta_url=captions.jsonl"};
  const auto with = [&](Lines more) {
    more.insert(more.begin(), captions.begin(), captions.end());
    return more;
  };
  const LoadedPriorConfig loaded = read_prior(with({"/prior/condition_on_text_encodings=true"}));
  CHECK(loaded.config.prior.clip->model == "c.pth");
  CHECK(loaded.warnings.empty());
  CHECK_NOTHROW(read_prior(with({"/data/image_url=null"})));
  prior_rejects("/data/image_url=null", "required, but missing");
  prior_rejects(with({"/data/meta_url=null"}),
                "must be given with prior.clip: the captions that belong to image_url, row by row");
  for (const std::string key : {"text_url", "text_encodings_url"}) {
    prior_rejects(with({"/data/" + key + "=t"}),
                  "is redundant beside prior.clip, which makes it of the captions: remove it, or "
                  "prior.clip");
  }
  const auto warnings = read_prior(with({R"(/prior/clip_adapter_overrides={"a": 1})"})).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] == "/prior/clip_adapter_overrides: has no effect, as in the reference");
  CHECK(read_prior(with({"/prior/clip_adapter_overrides={}"})).warnings.empty());
}

TEST_CASE("the sha256 of a CLIP is filled in, and another file is refused") {
  ReadOptions options{.overrides = {R"(/prior/clip={"model": "c.pth"})",
                                    "/data/text_url=null",
                                    "/data/meta_url=captions.jsonl"}};
  const auto read = [&] { return parse_prior_config(kMinimalPrior, "prior.json", options); };
  CHECK_FALSE(read().config.prior.clip->sha256);  // nobody was asked
  options.sha256_of_clip = [](const std::string& model) { return "sum of " + model; };
  CHECK(read().config.prior.clip->sha256 == "sum of c.pth");
  options.overrides.emplace_back("/prior/clip/sha256=other");
  CHECK(
      message_of(read) ==
      "prior.json: 1 problem\n  /prior/clip/sha256: expected the sha256 of c.pth, sum of c.pth, got "
      "other: it is another file than it was");
  options.overrides.pop_back();
  options.sha256_of_clip = [](const std::string&) -> std::string {
    throw ConfigError("c.pth: no such file");
  };
  CHECK(message_of(read) == "prior.json: 1 problem\n  /prior/clip/model: c.pth: no such file");
  // Where the config only describes the weights, the CLIP has no part.
  options.check_available = false;
  CHECK_NOTHROW(read());
}

TEST_CASE("captions without a CLIP have no effect, which is said") {
  const auto warnings = read_prior({"/data/meta_url=captions.txt"}).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Catch::Contains("/data/meta_url: has no effect without prior.clip"));
}

TEST_CASE("the rules between the sections of a prior config are enforced") {
  prior_rejects("/data/text_url=null",
                "must be given: the folder of the text embeddings that belong to image_url, row "
                "by row. (For captions give prior.clip and data.meta_url.)");
  prior_rejects("/prior/condition_on_text_encodings=true",
                "/data/text_encodings_url: must be given: the prior is conditioned on text "
                "encodings; set prior.condition_on_text_encodings to false to train without");
  prior_rejects("/data/text_encodings_url=t",
                "text encodings are being loaded, but not conditioned on: remove it, or set "
                "prior.condition_on_text_encodings to true");
  prior_rejects(R"(/data/splits={"train": 0.9, "val": 0.1, "test": 0})",
                "train and val must leave something for test: 0.9 + 0.1 is not below 1");
  prior_rejects("/prior/net/dim=16",
                "must equal prior.image_embed_dim (8), got 16: the embeddings are tokens of the "
                "transformer");
  prior_rejects("/train/eval_timesteps=[64, 1001]",
                "/train/eval_timesteps/1: must be between prior.sample_timesteps (2) and "
                "prior.timesteps (1000), got 1001");
  prior_rejects("/prior/sample_timesteps=128",
                "/train/eval_timesteps/0: must be between prior.sample_timesteps (128) and "
                "prior.timesteps (1000), got 64");
  prior_rejects("/train/dream/enabled=true",
                "Unknown prediction type sample: the prior predicts the clean embedding; set "
                "predict_v and predict_x_start of the prior to false for it, or dream.enabled to "
                "false");
}

TEST_CASE("what is wrong between options is told of a prior as of a decoder") {
  prior_rejects({"/prior/beta_schedule=linear", "/prior/timesteps=10", "/train/eval_timesteps=[5]"},
                "/prior/timesteps: with 10 timesteps the linear schedule of the prior has beta "
                "1.116 at step 5; a beta must stay below 1, or the loss is NaN: use at least 21 "
                "timesteps, or the cosine schedule");
  const auto warnings = [](const std::vector<std::string>& assignments) {
    return read_prior(assignments).warnings;
  };
  CHECK(warnings({"/train/use_ema=false", "/train/ema_beta=0.5"}) ==
        Lines{"/train/use_ema: is false: the keys train.ema, train.ema_* and "
              "train.update_model_with_ema_every have no effect"});
  CHECK(warnings({"/train/use_ema=false", "/train/ema_beta=0.9999"}).empty());
}

TEST_CASE("the seed of a prior may stand at the root or have the reference's name") {
  const auto seeds = [](const std::vector<std::string>& assignments) {
    const LoadedPriorConfig loaded = read_prior(assignments);
    const Json full = Json::parse(loaded.full_json);
    CHECK(full["seed"] == loaded.config.seed);
    CHECK(full["train"]["random_seed"] == loaded.config.seed);
    CHECK(loaded.config.train.random_seed == loaded.config.seed);
    return loaded.config.seed;
  };
  CHECK(seeds({}) == 0);
  CHECK(seeds({"/seed=3"}) == 3);
  CHECK(seeds({"/train/random_seed=4"}) == 4);
  CHECK(seeds({"/train/random_seed=5", "/seed=5"}) == 5);
  prior_rejects({"/train/random_seed=0", "/seed=7"},
                "7 differs from train.random_seed, 0: both are the seed of everything random; "
                "leave one of them out, or give both one value");
}

TEST_CASE("targets of a prior's savers may hold the placeholders of a prior") {
  CHECK_NOTHROW(read_prior({"/tracker/save/save_latest_to={epoch:03d}_{samples_seen}.pth",
                            "/tracker/save/save_best_to={best_validation_loss:.4f}.pth"}));
  prior_rejects("/tracker/save/save_latest_to={next_task}.pth",
                "unknown placeholder {next_task}: known are {epoch}, {samples_seen}, "
                "{best_validation_loss}");
}

TEST_CASE("the config of a prior has no place for other kinds") {
  prior_rejects("/decoder={}",
                "has no place here: this needs the config of a prior, and a file trains one kind");
}

TEST_CASE("the options of the loss reach a prior's plan") {
  const LoadedPriorConfig loaded = read_prior({"/train/min_snr_gamma=5",
                                               "/train/loss_weighting=cosmap",
                                               "/train/input_perturbation=0.1",
                                               "/train/timestep_sampling/scheme=mode"});
  CHECK(loaded.plan.loss.min_snr_gamma == 5.0);
  CHECK(loaded.plan.loss.weighting == LossWeighting::cosmap);
  CHECK(loaded.plan.loss.input_perturbation == 0.1);
  CHECK(loaded.plan.loss.timestep_sampling.scheme == TimestepScheme::mode);
  CHECK(loaded.plan.loss.noise_offset == 0.0);
}

constexpr const char* kMinimal = R"({
  "clip": {"vision_cfg": {"image_size": 32, "patch_size": 8}},
  "data": {"webdataset_base_url": "shards/{}.tar", "end_shard": 9, "splits": {}},
  "train": {},
  "tracker": {"log": {}, "save": {"save_latest_to": "latest.pth"}}
})";

LoadedClipConfig read_clip(const std::vector<std::string>& overrides) {
  return parse_clip_config(kMinimal, "clip.json", {.overrides = overrides});
}

void expect_clip_problem(const std::vector<std::string>& overrides, const std::string& problem) {
  const std::string message = message_of([&] { read_clip(overrides); });
  CHECK_THAT(message, Catch::Contains(problem));
}

TEST_CASE("a vocabulary that is trained says how many tokens a CLIP has") {
  CHECK(read_clip({"/clip/tokenizer/train=4096"}).config.clip.text_cfg.vocab_size == 4096);
  CHECK(read_clip({"/clip/tokenizer/train=600", "/clip/text_cfg/vocab_size=600"})
            .config.clip.text_cfg.vocab_size == 600);
  expect_clip_problem(
      {"/clip/tokenizer/train=600", "/clip/text_cfg/vocab_size=700"},
      "/clip/text_cfg/vocab_size: must be clip.tokenizer.train (600) or absent, got 700");
  expect_clip_problem(
      {"/clip/tokenizer/train=600", "/clip/tokenizer/path=words.txt"},
      "/clip/tokenizer/path: has no place beside clip.tokenizer.train: a vocabulary is "
      "read or trained");
}

TEST_CASE("towers that cannot be built are refused") {
  expect_clip_problem({"/clip/text_cfg/heads=7"},
                      "/clip/text_cfg/heads: must divide width, 512; got 7");
  expect_clip_problem(
      {"/clip/vision_cfg/head_width=100"},
      "/clip/vision_cfg/head_width: must divide the width of the attention, 768; got 100");
  expect_clip_problem(
      {"/clip/vision_cfg/patch_size=64"},
      "/clip/vision_cfg/image_size: must be 64 or more, which is one token; got 32");
  const std::string resnet = "/clip/vision_cfg/layers=[1,1,1,1]",
                    size = "/clip/vision_cfg/image_size=";
  expect_clip_problem({resnet, size + "63"},
                      "/clip/vision_cfg/image_size: must be a multiple of 32 for a ResNet; got 63");
  expect_clip_problem({resnet, size + "32"},
                      "/clip/vision_cfg/image_size: must be 64 or more to train a ResNet; got 32");
  CHECK_NOTHROW(read_clip({resnet, size + "64"}));
  expect_clip_problem(
      {"/clip/vision_cfg/layers=[1,1]"},
      "/clip/vision_cfg/layers: must be a number, or 4 of them for a ResNet; got 2");
}

TEST_CASE("a ResNet is not trained in fp16") {
  const std::string resnet = "/clip/vision_cfg={\"layers\": [1,1,1,1], \"image_size\": 64}";
  expect_clip_problem({resnet, "/train/mixed_precision=fp16"},
                      "/train/mixed_precision: must be \"no\" or \"bf16\" for a ResNet");
  CHECK(read_clip({resnet, "/train/mixed_precision=bf16"}).config.clip.vision_cfg.is_resnet());
  CHECK_FALSE(read_clip({"/train/mixed_precision=fp16"}).config.clip.vision_cfg.is_resnet());
}

TEST_CASE("a ResNet takes an update in one pass, for its batch norms see what a pass has") {
  const std::string resnet = "/clip/vision_cfg={\"layers\": [1,1,1,1], \"image_size\": 64}";
  expect_clip_problem(
      {resnet, "/train/grad_accum_every=2"},
      "/train/grad_accum_every: must be 1 for a ResNet, got 2: each pass would have other "
      "statistics in its batch norms; train a vision transformer");
  expect_clip_problem({resnet, "/train/max_batch_size=6", "/data/batch_size=7"},
                      "/train/max_batch_size: must be absent or at least data.batch_size (7) for a "
                      "ResNet, got 6");
  CHECK_NOTHROW(read_clip({resnet, "/train/max_batch_size=7", "/data/batch_size=7"}));
  CHECK_NOTHROW(read_clip({"/train/max_batch_size=6", "/train/grad_accum_every=2"}));
}

TEST_CASE("a key of the towers that is not known is refused") {
  expect_clip_problem({"/clip/vision_cfg/pool_type=avg"},
                      "/clip/vision_cfg/pool_type: no such key");
  expect_clip_problem({"/clip/text_cfg/embed_cls=true"}, "/clip/text_cfg/embed_cls: no such key");
}

TEST_CASE("a CLIP is trained on pictures and captions alone") {
  const std::string why = " has no place here: a CLIP is trained on pictures and captions alone";
  expect_clip_problem({"/data/img_embeddings_url=e"}, "/data/img_embeddings_url:" + why);
  expect_clip_problem({"/data/text_embeddings_url=e"}, "/data/text_embeddings_url:" + why);
  expect_clip_problem({"/data/embeddings_in_tar=true"}, "/data/embeddings_in_tar:" + why);
  expect_clip_problem({"/data/latents_in_tar=true"}, "/data/latents_in_tar:" + why);
}

TEST_CASE("what a CLIP's config has no place for is refused") {
  CHECK(message_of([] { read_clip({R"(/evaluate/classes=["cat","dog"])"}); }) ==
        "clip.json: 1 problem\n  /evaluate: has no place here: a CLIP is measured by its loss and "
        "by retrieval (R@1, R@5) alone; leave it out");
  CHECK(
      message_of([] { read_clip({"/train/cuda_graph=true"}); }) ==
      "clip.json: 1 problem\n  /train/cuda_graph: has no place here: a decoder and a prior record "
      "their passes as CUDA graphs, a CLIP does not; leave it out");
}

TEST_CASE("a CLIP's checkpoint is of other weights where the size of its pictures is another") {
  const auto meaning = [&](const std::string& change) {
    return compare_for_resume(read_clip({}).full_json, read_clip({change}).full_json).meaning;
  };
  CHECK(meaning("/clip/vision_cfg/image_size=64").size() == 1);
  CHECK(meaning("/clip/quick_gelu=true").size() == 1);
  CHECK(meaning("/clip/tokenizer/path=words.txt").empty());  // a checkpoint holds its vocabulary
  CHECK(meaning("/clip/init_logit_scale=1").empty());
}

TEST_CASE("a VAE's codes and its reduction follow from its kind") {
  const TrainVaeConfig config = read_vae({}).config;
  CHECK(config.vae.is_muse());
  CHECK(config.vae.is_lookup_free());
  CHECK(config.vae.codes() == 65536);
  CHECK(config.vae.reduction() == 16);
  const TrainVaeConfig theirs = read_vae({"/vae/kind=dalle2", "/vae/image_size=64"}).config;
  CHECK(theirs.vae.codes() == 512);
  CHECK_FALSE(theirs.vae.is_lookup_free());
  CHECK(read_vae({}).warnings.empty());
}

TEST_CASE("whether EXIF counts is settled when a config is read, and part of it") {
  CHECK(read_vae({}).config.data.apply_exif == false);
  CHECK(read_vae({"/data/apply_exif=true"}).config.data.apply_exif == true);
  CHECK(read_vae({}).full_json.find("\"apply_exif\": false") != std::string::npos);
}

TEST_CASE("what a VAE config says against itself is told") {
  vae_rejects("/vae/channels=2", "must be 1, 3 or 4, got 2");
  vae_rejects("/data/image_size=72",
              "must be divisible by 16 (2 to the power of vae.layers), got 72");
  vae_rejects("/vae/image_size=32", "/data/image_size: must be vae.image_size (32), got 64");
  vae_rejects("/vae/discr_layers=5",
              "/data/image_size: the discriminator of vae.discr_layers = 5 needs pictures of 128 "
              "pixels or more, got 64");
  vae_rejects("/vae/codebook_size=1000",
              "must be a power of two for lookup-free quantisation, got 1000");
  vae_rejects("/vae/vq_codebook_size=512",
              "is the dalle2 kind's; of the muse kind give codebook_size");
  vae_rejects("/vae/dim=24", "must be divisible by encdec_resnet_groups (16), got 24");
  vae_rejects({"/vae/dim=24", "/vae/encdec_resnet_groups=8"},
              "/vae/dim: must be divisible by 16, the groups of the discriminator's norms, got 24");
  vae_rejects("/vae/encdec_layer_mults=[1,2]", "must have one entry for each of the 4 layers");
  vae_rejects("/vae/encdec_num_resnet_blocks=[1,2]",
              "must have one entry for each of the 4 layers");
  vae_rejects("/vae/encdec_first_conv_kernel_size=4", "must be odd");
  vae_rejects("/vae/kind=dalle2", "/vae/image_size: is needed by the dalle2 kind");
  vae_rejects({"/vae/kind=dalle2", "/vae/image_size=64", "/vae/lookup_free_quantization=false"},
              "is the muse kind's: the dalle2 kind always has a codebook");
  vae_rejects("/train/lora/rank=2", "/train/lora: has no place here: a VAE is trained as a whole");
  CHECK_THAT(message_of([] { read_vae({"/train/vgg_path=null"}); }),
             Catch::Contains("/train/vgg_path: must be given: the perceptual loss"));
  CHECK_NOTHROW(read_vae({"/train/vgg_path=null", "/vae/use_vgg_and_gan=false"}));
}

}  // namespace
}  // namespace dalle2
