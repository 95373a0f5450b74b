// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "config/clip/clip_run_config.h"
#include "config/minimal_config.h"
#include "config/resume_changes.h"

namespace dalle2 {
namespace {

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

TEST_CASE("a CLIP's config has open_clip's defaults") {
  const TrainClipConfig config = read_clip({}).config;
  CHECK(config.clip.embed_dim == 512);
  CHECK(config.clip.text_cfg.vocab_size == 49408);
  CHECK(config.train.lr == 5e-4);
  CHECK(config.train.wd == 0.2);
  CHECK(config.train.betas == std::vector<double>{0.9, 0.98});
  CHECK(config.train.eps == 1e-6);
  CHECK_FALSE(config.train.max_grad_norm);
  CHECK_FALSE(config.train.use_ema);
  CHECK(config.train.max_logit_scale == 100);
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
  expect_clip_problem({"/clip/tokenizer/train=514"}, "/clip/tokenizer/train: must be >= 515");
}

TEST_CASE("towers that cannot be built are refused") {
  expect_clip_problem({"/clip/text_cfg/heads=0"}, "/clip/text_cfg/heads: must be >= 1");
  expect_clip_problem({"/clip/vision_cfg/head_width=0"},
                      "/clip/vision_cfg/head_width: must be >= 1");
  expect_clip_problem({"/clip/vision_cfg/patch_size=0"},
                      "/clip/vision_cfg/patch_size: must be >= 1");
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

}  // namespace
}  // namespace dalle2
