// SPDX-License-Identifier: MIT
#include "config/minimal_config.h"

#include "config/shared/text_rules.h"

namespace dalle2 {

TEST_CASE("a value of the wrong type is named with what was expected and found") {
  rejects("/train/epochs=8.5", "expected an integer, got 8.5 (a number with a fractional part)");
  rejects("/train/lr=fast", R"(expected a number, got "fast")");
  rejects("/train/use_ema=maybe", R"(expected true or false, got "maybe")");
  rejects("/train/device=0", "expected a string, got 0");
  rejects("/decoder/unets/0/dim_mults=2", "expected a list, got 2");
  rejects("/data/splits=[]", "expected an object, got []");
  rejects("/train/lr=null", "must not be null; expected a number or a list");
  rejects("/train/lr={}", "expected a number or a list, got {}");
  rejects("/decoder/unets/0/self_attn=[true, 2]",
          "/decoder/unets/0/self_attn/1: expected true or false, got 2");
  rejects("/seed=99999999999999999999", "expected an integer, got 1e+20 (too large)");
  rejects("/train/betas=[0.9]", "must have 2 entries, got 1");
  rejects("/data/preprocessing=[]", "expected an object, name -> arguments, got []");
  rejects("/decoder/loss_type=3", R"(expected one of "l1" "l2" "huber", got 3)");
  rejects(R"(/decoder/beta_schedule=["cosin"])",
          R"(/decoder/beta_schedule/0: expected one of "cosine" "linear" "quadratic" "jsd" )"
          R"("sigmoid", got "cosin"; did you mean "cosine"?)");
  rejects(R"(/evaluate/FID={"feature": 65})",
          R"(/evaluate/FID/feature: expected one of 64 192 768 2048 "logits_unbiased", got 65)");
  rejects(R"(/decoder/clip={"make": "coca"})",
          R"(/decoder/clip/make: expected one of "openai" "open_clip" "x-clip", got "coca")");
}

TEST_CASE("texts of any length are read without harm") {
  const std::string digits(1000000, '1');
  const auto message = [](const std::string& assignment) {
    return message_of([&] { read_with({assignment}); });
  };
  CHECK_THAT(message("/train/epochs=\"" + digits + "\""),
             Catch::Contains("/train/epochs: expected an integer, got \"1111"));
  CHECK_THAT(message("/train/lr=\"" + digits + "\""),
             Catch::Contains("/train/lr: expected a number, got \"1111"));
  CHECK_THAT(message("/train/lr=\"0." + digits + "e\""),
             Catch::Contains("/train/lr: expected a number, got \"0.1111"));
  CHECK(message("/data/img_embeddings_url=" + std::string(1000000, 'a')) == "no error");
  CHECK_THAT(message("/data/img_embeddings_url=g" + std::string(1000000, 's') + "://b"),
             Catch::Contains("/data/img_embeddings_url: data comes from files"));
}

TEST_CASE("no message about a config shows the secrets of its urls and commands") {
  const std::vector<std::string> assignments = {
      R"(/data/webdataset_base_url="http://h/a{}.tar::http://u:canary@h/b{}.tar?sig=canary")",
      R"(/data/webdataset_base_url="pipe:curl -H 'Bearer canary' h/{}::http://canary@h/{}?canary")",
      R"(/data/webdataset_base_url={"a": "http://u:canary@h/x?canary"})",
      R"(/data/webdataset_base_url={"a": ["pipe:curl -u canary h"]})",
      R"(/data/img_embeddings_url="foo://u:canary@h/{}.tar?k=canary")",
      R"(/data/img_embeddings_url=["http://u:canary@h/x?canary"])",
      R"(/data/end_shard="http://u:canary@h/x?canary")",
      R"(/train/ema/kind="pipe:curl -u canary h")",
      R"(/tracker/save/save_latest_to="http://u:canary@h/{nothing}?canary")",
      "data/x=http://u:canary@h/x?canary",
      "pipe:curl -H 'Bearer canary' h?a=1",
      R"(/tracker/save/save_to="pipe:curl -H canary")",
      R"(/tracker/save/save_latest_to="http://u:canary@h/../x")",
      "http://u:canary@h/x?canary",
      "/data/webdataset_base_url/x=http://u:canary@h/x?canary",
      R"(/data/end_shard="http://u:canary@h/)",
      R"(/data/end_shard=["http://u:canary@h/x?canary", 1)",
  };
  for (const std::string& assignment : assignments) {
    const std::string message = message_of([&] { read_with({assignment}); });
    INFO(assignment << "\n" << message);
    CHECK(message != "no error");
    CHECK(message.find("canary") == std::string::npos);
  }
  for (const std::string broken : {"{\"data\": \"http://u:canary@h/\x01\"}",
                                   "{\"data\": \"pipe:curl -u canary\n\"}",
                                   "{\"data\": http://u:canary@h/}"}) {
    const std::string message = message_of([&] { parse_decoder_config(broken, "a.json", {}); });
    INFO(message);
    CHECK_THAT(message, Catch::Contains("a.json: not valid JSON: parse error at line "));
    CHECK(message.find("canary") == std::string::npos);
  }
}

TEST_CASE("a value beyond its limits is named with the limits") {
  rejects("/train/lr=[1e-4, 0.02]", "/train/lr/1: must be > 0 and <= 0.01, got 0.02");
  rejects("/train/epochs=0", "must be >= 1 and <= 1000000000, got 0");
  rejects("/train/betas=[0.9, 1]", "/train/betas/1: must be >= 0 and < 1, got 1");
  rejects("/data/splits/train=1.5", "must be >= 0 and <= 1, got 1.5");
  rejects("/decoder/unets/0/dim_mults=[]", "must have at least one entry, got none");
  rejects("/decoder/unets/0/init_cross_embed_kernel_sizes=[]",
          "must have at least one entry, got none");
  rejects(R"(/tracker/data_path="")", "must not be empty");
  rejects("/train/max_grad_norm=0", "must be > 0, got 0");
  CHECK_NOTHROW(read_with({"/train/ema_beta=1", "/train/ema_min_value=0"}));
}

TEST_CASE("an unknown key is named with the one it may have been meant for") {
  rejects("/decoder/unet=1", R"(no such key; did you mean "unets"?)");
  rejects("/decoder/unets/0/dim_mult=[1]", R"(no such key; did you mean "dim_mults"?)");
  expect_problems(
      {R"(/evaluate/KID={"subset": 1, "colour": 2})"},
      {R"(/evaluate/KID/subset: no such key; did you mean "subsets"?)",
       "/evaluate/KID/colour: no such key; known are: feature subsets subset_size "
       "degree gamma coef reset_real_features normalize feature_extractor_weights_path"});
  expect_problems(
      {R"(/data/preprocessing/Resize={"size": 8, "antialias": true})"},
      {"/data/preprocessing: ToTensor is missing: pictures cannot be made "
       R"(into a batch without it; add "ToTensor": true as the last transform)",
       "warning: /data/preprocessing/Resize/antialias: has no effect: pictures are always "
       "smoothed when shrunk"});
}

TEST_CASE("a key of another section is named with its place") {
  rejects("/train/batch_size=4", "no such key; did you mean /data/batch_size?");
  rejects("/lr=1", "no such key; did you mean /train/lr?");
  const std::string file = file_with(kMinimalConfig, {"/train/num_workers=4"});
  CHECK(parse_decoder_config(file, "test.json", {}).warnings ==
        std::vector<std::string>{
            "/train/num_workers: no such key, it is ignored; did you mean /data/num_workers?"});
  // Of several places none is named.
  CHECK_THAT(
      message_of([] { read_with({"/evaluate/train=1"}); }),
      Catch::StartsWith("test.json: 1 problem\n  /evaluate/train: no such key; known are: "));
}

TEST_CASE("the sections have to fit each other") {
  rejects(
      {"/train/cond_scale=3", "/decoder/image_cond_drop_prob=0", "/decoder/text_cond_drop_prob=0"},
      "/train/cond_scale: must be 1: classifier-free guidance needs "
      "decoder.image_cond_drop_prob or decoder.text_cond_drop_prob above 0");
  rejects("/train/lr=[1e-4, 1e-4]", "must be one value or have one entry for each unet (1), got 2");
  rejects("/train/unet_training_mask=[true, false]",
          "must have one entry for each unet (1), got 2");
  rejects("/train/unet_training_mask=[false]", "must train at least one unet, all are false");
  rejects("/train/cond_scale=[1, 2]",
          "must be one value or have one entry for each unet (1), got 2");
  rejects("/train/warmup_steps=[5, null]",
          "must be one value or have one entry for each unet (1), got 2");
  rejects(R"(/evaluate/KID={"subset_size": 2000})",
          "/evaluate/KID/subset_size: must not exceed n_evaluation_samples (1000), got 2000");
}

TEST_CASE("options that may be null may be so as a whole and for each unet") {
  const DecoderTrainConfig one = read_with({"/train/max_grad_norm=null"}).config.train;
  CHECK(one.max_grad_norm.is_one());
  CHECK_FALSE(one.max_grad_norm.at(0).has_value());
  const LoadedDecoderConfig loaded =
      read_with(cascade({"/train/max_grad_norm=[null, 2]", "/train/warmup_steps=[3, null]"}));
  CHECK(loaded.config.train.max_grad_norm == OneOrMany<std::optional<double>>({std::nullopt, 2.0}));
  CHECK(loaded.config.train.warmup_steps ==
        OneOrMany<std::optional<int64_t>>({int64_t{3}, std::nullopt}));
  CHECK(loaded.config.train.cosine_decay_max_steps ==
        OneOrMany<std::optional<int64_t>>(std::nullopt));
  CHECK(value_for(loaded.config.train.max_grad_norm, 1) == 2.0);
  CHECK_THAT(loaded.full_json,
             Catch::Contains("\"cosine_decay_max_steps\": null") &&
                 Catch::Contains("\"max_grad_norm\": [\n      null,\n      2.0\n"));
  CHECK(parse_decoder_config(loaded.full_json, "again.json", {}).full_json == loaded.full_json);
  rejects(cascade({"/train/max_grad_norm=[null, -1]"}),
          "/train/max_grad_norm/1: must be > 0, got -1");
  rejects(cascade({"/train/max_grad_norm=[1, 1, 1]"}),
          "must be one value or have one entry for each unet (2), got 3");
}

TEST_CASE("the options of the loss have to fit the unets") {
  rejects({"/train/min_snr_gamma=5", "/decoder/p2_loss_weight_gamma=0.5"},
          "/train/min_snr_gamma: excludes decoder.p2_loss_weight_gamma: both weigh the loss of "
          "unet 1 by its signal-to-noise ratio, and p2_loss_weight_gamma is 0.5; set one of them "
          "to null or 0");
  rejects(cascade({"/train/min_snr_gamma=[5]"}),
          "must be one value or have one entry for each unet (2), got 1");
  rejects(cascade({"/train/dream/enabled=true", "/decoder/predict_x_start=[false, true]"}),
          "/train/dream/enabled: Unknown prediction type sample: unet 2 predicts the clean "
          "image; set predict_v and predict_x_start of the decoder to false for it, or "
          "dream.enabled to false");
  rejects(R"(/train/timestep_sampling={"scheme": "logit_normal", "logit_std": null})",
          "/train/timestep_sampling/logit_std: must not be null; expected a number");
}

TEST_CASE("each kind of average has options of its own") {
  rejects({"/train/ema/kind=diffusers", "/train/ema/decay=0.5", "/train/ema/min_decay=0.99"},
          "/train/ema/decay: must not be below min_decay (0.99), got 0.5");
  CHECK_NOTHROW(
      read_with({"/train/ema/kind=diffusers", "/train/ema/decay=0.5", "/train/ema/min_decay=0.5"}));
}

TEST_CASE("the options of the loss reach the unets that are trained, and only those are asked") {
  const DecoderPlan plan = read_with(cascade({"/train/min_snr_gamma=[null, 4]",
                                              "/train/dream/enabled=true",
                                              "/train/loss_weighting=cosmap",
                                              "/train/timestep_sampling/scheme=mode",
                                              "/train/noise_offset=0.1",
                                              "/train/input_perturbation=0.2",
                                              "/train/unet_training_mask=[false, true]",
                                              "/decoder/predict_v=[true, false]",
                                              "/decoder/p2_loss_weight_gamma=[1, 0]"}))
                               .plan;
  CHECK_FALSE(plan.stages[0].loss.dream.enabled);
  CHECK(plan.stages[0].loss.weighting == LossWeighting::none);
  const LossPlan& loss = plan.stages[1].loss;
  CHECK(loss.min_snr_gamma == 4);
  CHECK(loss.dream.enabled);
  CHECK(loss.weighting == LossWeighting::cosmap);
  CHECK(loss.timestep_sampling.scheme == TimestepScheme::mode);
  CHECK(loss.timestep_sampling.mode_scale == 1.29);
  CHECK(loss.noise_offset == 0.1);
  CHECK(loss.input_perturbation == 0.2);
}

TEST_CASE("cpu, cuda and numbered GPUs are names of devices") {
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:7", "cuda:0010", "cuda:9999"}) {
    INFO(name);
    CHECK(device_fault(name) == std::nullopt);
  }
}

TEST_CASE("other names of devices are refused, with those there are") {
  for (const std::string& name : {std::string(),
                                  std::string("CPU"),
                                  std::string("cpu:0"),
                                  std::string("cuda0"),
                                  std::string("cuda:"),
                                  std::string("cuda:1x"),
                                  std::string("cuda: 1"),
                                  std::string("cuda:12345"),
                                  std::string("cuda:0\0", 7),
                                  std::string("mps")}) {
    INFO(name);
    CHECK(device_fault(name) ==
          "expected \"cpu\", \"cuda\" or \"cuda:N\", N the number of a GPU with at most 4 digits, "
          "got " +
              shown(name));
  }
}

TEST_CASE("a name of any length is refused in one line") {
  const std::string fault = *device_fault("cuda:" + std::string(1'000'000, '1'));
  CHECK(fault.size() < 200);
  CHECK(fault.find('\n') == std::string::npos);
}

TEST_CASE("the device of a run is checked") {
  rejects("/train/device=gpu",
          R"(expected "cpu", "cuda" or "cuda:N", N the number of a GPU with at most 4 digits, )"
          R"(got "gpu")");
  CHECK(read_with({"/train/device=cuda:3"}).config.train.device == "cuda:3");
}

}  // namespace dalle2
