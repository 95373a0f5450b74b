// SPDX-License-Identifier: MIT
#include <sys/stat.h>
#include <cstdio>
#include <thread>

#include "config/kinds.h"
#include "config/minimal_config.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

LoadedDecoderConfig read_reference_file(const std::string& name, bool check_available) {
  ReadOptions options;
  options.check_available = check_available;
  options.no_commands = true;  // the reference's example reads its shards through s3cmd
  return load_decoder_config(DALLE2_SOURCE_DIR "/tests/config/data/" + name, options);
}

std::string write_file(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() / ("dalle2_config_test_" + name);
  std::ofstream(path) << text;
  return path.string();
}

}  // namespace

TEST_CASE("the reference's example config is accepted as it is") {
  const TrainDecoderConfig config = read_reference_file("reference_example.json", true).config;
  CHECK(config.decoder.unets.at(0).dim == 128);
  CHECK(config.decoder.unets[0].cond_dim == 64);
  CHECK(config.data.preprocessing.size() == 2);
  CHECK(config.data.preprocessing[0].kind == TransformKind::RandomResizedCrop);
  CHECK(config.data.preprocessing[0].size == std::vector<int64_t>{128, 128});
  CHECK(config.evaluate.KID->subset_size == 10);
  CHECK(config.evaluate.LPIPS->net_type == LpipsNet::vgg);
  CHECK_FALSE(config.tracker.load);
  CHECK(std::get<WandbLogConfig>(config.tracker.log.at(0)).wandb_entity == "your_wandb");
  REQUIRE(config.tracker.save.size() == 2);
  const auto& hub = std::get<HuggingfaceSaveConfig>(config.tracker.save[1]);
  CHECK(hub.save_type == SaveType::model);
  CHECK(hub.save_meta_to == "path/to/directory/for/assorted/files");
}

TEST_CASE("the reference's test config is accepted as it is") {
  const LoadedDecoderConfig loaded = read_reference_file("reference_test.json", false);
  CHECK(loaded.warnings.empty());
  CHECK(loaded.config.decoder.unets.at(0).self_attn.values() ==
        std::vector<bool>{false, true, true, true});
  CHECK(loaded.config.decoder.clip->model == "ViT-L/14");
  CHECK(loaded.config.train.lr.at(0) == 1e-16);
  CHECK(std::get<LocalSaveConfig>(loaded.config.tracker.save.at(0)).save_latest_to == "latest.pth");
}

TEST_CASE("all faults of all sections are reported at once, in the order of the file") {
  expect_problems({"/decoder/unets/0/dim=x",
                   "/decoder/unets/0/dim_mults/1=q",
                   "/decoder/loss_type=L2",
                   "/data/batch_size=0",
                   "/train/lr=-1",
                   "/train/ema_bta=0.9",
                   "/tracker/log/log_type=wandb"},
                  {R"(/decoder/unets/0/dim: expected an integer, got "x")",
                   R"(/decoder/unets/0/dim_mults/1: expected an integer, got "q")",
                   R"(/decoder/loss_type: expected one of "l1" "l2" "huber", got "L2"; )"
                   R"(did you mean "l2"?)",
                   "/data/batch_size: must be >= 1 and <= 1048576, got 0",
                   "/train/lr: must be > 0 and <= 0.01, got -1",
                   R"(/train/ema_bta: no such key; did you mean "ema_beta"?)",
                   "/tracker/log/wandb_entity: required, but missing",
                   "/tracker/log/wandb_project: required, but missing"});
}

TEST_CASE("missing sections and fields are all listed") {
  const std::string message =
      message_of([] { parse_decoder_config(R"({"decoder": {}, "data": {}})", "a.json", {}); });
  CHECK(message ==
        "a.json: 6 problems\n"
        "  /decoder/unets: required, but missing\n"
        "  /data/webdataset_base_url: required, but missing\n"
        "  /data/splits: required, but missing\n"
        "  /train: required, but missing\n"
        "  /evaluate: required, but missing\n"
        "  /tracker: required, but missing");
}

TEST_CASE("a report of very many faults fits a terminal") {
  std::vector<std::string> assignments;
  for (int i = 0; i < 80; ++i)
    assignments.push_back("/decoder/unets/0/dim_mults/" + std::to_string(i) + "=x");
  const std::string message = message_of([&] { read_with(assignments); });
  CHECK(std::count(message.begin(), message.end(), '\n') <= 51);
  CHECK_THAT(message, Catch::StartsWith("test.json: 80 problems\n"));
  CHECK_THAT(message, Catch::EndsWith("\n  and 30 more"));
}

TEST_CASE("values that can only mean one thing are taken as the reference takes them") {
  const TrainDecoderConfig config = read_with({R"(/train/epochs="3")",
                                               "/data/batch_size=8.0",
                                               "/train/save_every_n_samples=1e6",
                                               "/data/num_workers=true",
                                               R"(/train/lr="1e-4")",
                                               "/train/use_ema=0",
                                               R"(/train/save_immediately="yes")",
                                               "/decoder/learned_variance=[1]"})
                                        .config;
  CHECK(config.train.epochs == 3);
  CHECK(config.data.batch_size == 8);
  CHECK(config.train.save_every_n_samples == 1000000);
  CHECK(config.data.num_workers == 1);
  CHECK(config.train.lr.at(0) == 1e-4);
  CHECK_FALSE(config.train.use_ema);
  CHECK(config.train.save_immediately);
  CHECK(config.decoder.learned_variance == OneOrMany<bool>(std::vector<bool>{true}));
}

TEST_CASE("an unknown key far from any known one is a warning, with --strict an error") {
  const std::vector<std::string> assignments = {"/train/colour=1",
                                                "/decoder/unets/0/sparse_attn_window=8"};
  const std::string file = file_with(kMinimalConfig, assignments);
  CHECK(parse_decoder_config(file, "test.json", {}).warnings ==
        std::vector<std::string>{"/decoder/unets/0/sparse_attn_window: no such key, it is ignored",
                                 "/train/colour: no such key, it is ignored"});
  CHECK(message_of(
            [&] { parse_decoder_config(file, "test.json", {.overrides = {}, .strict = true}); }) ==
        "test.json: 2 problems\n"
        "  /decoder/unets/0/sparse_attn_window: no such key\n"
        "  /train/colour: no such key");
}

TEST_CASE("a key of other programs is a warning that names ours") {
  nlohmann::json config = nlohmann::json::parse(file_with(kMinimalConfig, {}));
  config["train"]["learning_rate"] = 1e-4;
  config["data"]["embeddings_url"] = "emb";
  config["train"]["num_epochs"] = 3;
  CHECK(parse_decoder_config(config.dump(), "test.json", {}).warnings ==
        std::vector<std::string>{
            "/data/embeddings_url: no such key, it is ignored; did you mean img_embeddings_url?",
            "/train/learning_rate: no such key, it is ignored; did you mean lr?",
            "/train/num_epochs: no such key, it is ignored; did you mean epochs?"});
}

TEST_CASE("options without effect are warned of") {
  const LoadedDecoderConfig loaded =
      read_with({"/decoder/clip_denoised=false",
                 "/decoder/unets/0/attend_at_middle=false",
                 R"(/tracker/log={"log_type": "tensorboard", "resume": true})",
                 "/tracker/save/save_latest=false",
                 "/data/shuffle_train=false",
                 "/data/resample_train=true"});
  CHECK(
      loaded.warnings ==
      std::vector<std::string>{
          "/decoder/unets/0/attend_at_middle: has no effect, as in the reference: the middle "
          "always attends",
          "/decoder/clip_denoised: has no effect, as in the reference",
          "/tracker/log/resume: has no effect: each start adds a file, and TensorBoard shows them "
          "as one run",
          "/tracker/save/save_latest: has no effect, as in the reference: set save_latest_to to "
          "null instead",
          "/train/epoch_samples: resample_train draws without end, so the first epoch never ends: "
          "set epoch_samples"});
}

TEST_CASE("a pointer escapes the signs that pointers are made of") {
  const std::string file = file_with(kMinimalConfig, {R"(/train={"a/b~c": 1})"});
  CHECK(parse_decoder_config(file, "test.json", {}).warnings ==
        std::vector<std::string>{"/train/a~1b~0c: no such key, it is ignored"});
}

TEST_CASE("comments are allowed and editors may name the schema") {
  const std::string text =
      "// a comment\n{\"$schema\": \"schema.json\", /* another */" + kMinimalConfig.substr(1);
  CHECK(parse_decoder_config(text, "a.json", {}).warnings.empty());
}

TEST_CASE("a key given twice is an error that names its place") {
  const std::string message = message_of([] {
    parse_decoder_config(
        R"({"decoder": {"unets": [{"dim": 8, "dim_mults": [1]}, {"dim": 8, "dim": 16,
        "dim_mults": [1]}], "image_sizes": [8, 16]}})",
        "a.json",
        {});
  });
  CHECK_THAT(message,
             Catch::Contains("\n  /decoder/unets/1/dim: given twice; remove one of the two"));
}

TEST_CASE("a file that is no JSON is refused with line and column") {
  CHECK(
      message_of([] { parse_decoder_config("{\n  \"decoder\": {,}\n}", "a.json", {}); }) ==
      "a.json: not valid JSON: parse error at line 2, column 15: syntax error while parsing object "
      "key - unexpected ','; expected string literal");
  CHECK(message_of([] { parse_decoder_config("[1]", "a.json", {}); }) ==
        "a.json: expected an object with the sections of a config, got [1]");
}

TEST_CASE("a file that cannot be read is refused with the reason") {
  CHECK(message_of([] { load_decoder_config("/no/such/config.json", {}); }) ==
        "/no/such/config.json: cannot read the config: No such file or directory");
  CHECK(message_of([] { load_decoder_config("/tmp", {}); }) ==
        "/tmp: expected a JSON file, got a folder");
}

TEST_CASE("--set beats the file, makes sections and appends to lists") {
  const TrainDecoderConfig config = read_with({"/train/epochs=7",
                                               "/train/device=cpu",
                                               "/tracker/load/load_from=local",
                                               "/tracker/load/file_path=a=b.pth",
                                               "/decoder/unets/0/dim_mults/2=4"})
                                        .config;
  CHECK(config.train.epochs == 7);
  CHECK(config.train.device == "cpu");
  CHECK(std::get<LocalLoadConfig>(*config.tracker.load).file_path == "a=b.pth");
  CHECK(config.decoder.unets[0].dim_mults == std::vector<int64_t>{1, 2, 4});
}

TEST_CASE("--set of a key that does not exist is an error, wherever the key stands in it") {
  const auto error = [](const std::string& assignment) {
    return message_of([&] { read_with({assignment}); });
  };
  CHECK_THAT(error("/train/colour=1"),
             Catch::StartsWith("test.json: 1 problem\n  /train/colour: no such key; known are: "));
  CHECK_THAT(error("/train/colour/of/sky=1"),
             Catch::StartsWith("test.json: 1 problem\n  /train/colour: no such key; known are: "));
  CHECK_THAT(error(R"(/train={"colour": 1})"),
             Catch::StartsWith("test.json: 1 problem\n  /train/colour: no such key; known are: "));
  CHECK_THAT(error("/colour=1"), Catch::StartsWith("test.json: 1 problem\n  /colour: no such key"));
}

TEST_CASE("--set that names no place is refused") {
  CHECK(message_of([] { read_with({"train.lr=1"}); }) ==
        "--set \"train.lr=...\": expected /pointer=value, e.g. --set /train/lr=3e-4");
  CHECK(message_of([] { read_with({"/train/lr"}); }) ==
        "--set \"/train/lr\": expected /pointer=value, e.g. --set /train/lr=3e-4");
  CHECK_THAT(message_of([] { read_with({"/decoder/unets/5/dim=8"}); }),
             Catch::StartsWith("--set /decoder/unets/5/dim: no such place in the config: "));
  CHECK_THAT(message_of([] { read_with({"/decoder/unets/x=8"}); }),
             Catch::StartsWith("--set /decoder/unets/x: no such place in the config: "));
  CHECK_THAT(
      message_of([] { read_with({"/decoder/unets/0/dim/a=8"}); }),
      Catch::StartsWith(
          "--set /decoder/unets/0/dim/a: no such place in the config: it leads through the value 16"));
}

TEST_CASE("the full config reads back to the same full config, the raw one is the file") {
  for (const std::string& text : {kMinimalConfig,
                                  read_reference_file("reference_example.json", false).full_json,
                                  read_with(cascade({"/train/lr=[1e-4, 3e-4]",
                                                     R"(/tracker/load={"load_from": "local",
            "file_path": "a.pth"})",
                                                     "/decoder/blur_sigma=[0.4, 0.6]",
                                                     "/decoder/sample_timesteps=[null, 50]"}))
                                      .full_json}) {
    ReadOptions options;
    options.check_available = false;
    options.no_commands = true;
    const LoadedDecoderConfig once = parse_decoder_config(text, "a.json", options);
    const LoadedDecoderConfig twice = parse_decoder_config(once.full_json, "b.json", options);
    CHECK(once.raw_json == text);
    CHECK(once.full_json == twice.full_json);
    CHECK(twice.warnings.empty());
  }
}

TEST_CASE("transforms keep the order of the file and false leaves one out") {
  const LoadedDecoderConfig loaded = read_with(
      {R"(/data/preprocessing={"RandomHorizontalFlip": {"p": 0.25}, "CenterCrop": {"size": 9},
          "Resize": {"size": [8, 9], "interpolation": 3}, "RandomResizedCrop": false,
          "ToTensor": null})"});
  const std::vector<TransformConfig>& transforms = loaded.config.data.preprocessing;
  REQUIRE(transforms.size() == 4);
  CHECK(transforms[0].kind == TransformKind::RandomHorizontalFlip);
  CHECK(transforms[0].p == 0.25);
  CHECK(transforms[1].kind == TransformKind::CenterCrop);
  CHECK(transforms[1].size == std::vector<int64_t>{9});
  CHECK(transforms[2].kind == TransformKind::Resize);
  CHECK(transforms[2].interpolation == "bicubic");
  CHECK(transforms[3].kind == TransformKind::ToTensor);
  CHECK(loaded.warnings ==
        std::vector<std::string>{
            "/data/preprocessing/RandomResizedCrop: false switches the transform off (the "
            "reference applies it all the same)"});
}

TEST_CASE("shares that sum to 1 but for rounding are taken") {
  // 0.7 + 0.2 + 0.1 is 0.9999999999999999, which the reference refuses.
  CHECK_NOTHROW(read_with({R"(/data/splits={"train": 0.7, "val": 0.2, "test": 0.1})"}));
  CHECK_NOTHROW(read_with({R"(/data/splits={"train": 1, "val": 0, "test": 0})"}));
  CHECK_THROWS_AS(read_with({R"(/data/splits={"train": 0.70001, "val": 0.2, "test": 0.1})"}),
                  ConfigError);
}

TEST_CASE("a loader of none is no loader, a saver may stand alone or in a list") {
  CHECK_FALSE(read_with({R"(/tracker/load={"load_from": null})"}).config.tracker.load);
  CHECK_FALSE(read_with({"/tracker/load={}"}).config.tracker.load);
  CHECK_FALSE(read_with({"/tracker/load=null"}).config.tracker.load);
  CHECK(read_with({R"(/tracker/save={"save_best_to": "b"})"}).config.tracker.save.size() == 1);
  CHECK(read_with({R"(/tracker/save=[{"save_best_to": "b"}, {"save_meta_to": "m"}])"})
            .config.tracker.save.size() == 2);
}

TEST_CASE("targets may hold placeholders with format specs, false is off") {
  const auto config = read_with({"/tracker/save/save_latest_to=a/{epoch:03d}_{sample}_{{x}}.pth",
                                 "/tracker/save/save_best_to=false",
                                 "/tracker/save/save_meta_to=null"})
                          .config;
  const auto& save = std::get<LocalSaveConfig>(config.tracker.save[0]);
  CHECK(save.save_latest_to == "a/{epoch:03d}_{sample}_{{x}}.pth");
  CHECK_FALSE(save.save_best_to);
  CHECK_FALSE(save.save_meta_to);
  for (const char* target : {"{samples_seen:10d}",
                             "{next_task}",
                             "{validation_losses}",
                             "{validation_losses[12]:.4f}",
                             "{epoch:.3e}",
                             "a..b/...pth"}) {
    CHECK_NOTHROW(read_with({std::string("/tracker/save/save_latest_to=") + target}));
  }
}

TEST_CASE("text in a config is UTF-8, in the file and in overrides, and its key is named") {
  const auto refused = [](const std::string& path) {
    std::string text = kMinimalConfig;
    text.replace(text.find("latest.pth"), 10, path);
    return message_of([&] { parse_decoder_config(text, "a.json", {}); });
  };
  CHECK(refused("\\ud800.pth") ==
        "a.json: /tracker/save/save_latest_to: expected UTF-8, got an escape that is half of a "
        "surrogate pair");
  CHECK_THAT(refused("x\xc0\xaf"),
             Catch::StartsWith("a.json: /tracker/save/save_latest_to: expected UTF-8, got the byte "
                               "0xc0 at line "));
  CHECK(
      message_of([] { read_with({R"(/tracker/data_path="\ud800")"}); }) ==
      R"(--set /tracker/data_path: expected UTF-8, got an escape that is half of a surrogate pair)");
  CHECK(message_of([] { read_with({"/tracker/data_path=out\xff"}); }) ==
        "--set /tracker/data_path: expected UTF-8, got the byte 0xff at offset 3");
  CHECK(message_of([] { read_with({"/tracker/\xff=1"}); }) ==
        "--set /tracker/\xef\xbf\xbd: expected UTF-8, got the byte 0xff at offset 9");
  CHECK(read_with({R"(/tracker/data_path="\ud83d\ude3a")"}).config.tracker.data_path ==
        "\xf0\x9f\x98\xba");
}

TEST_CASE("a config with very many keys is refused at once") {
  std::string text = kMinimalConfig;
  std::string keys;
  for (int i = 0; i < 100'000; ++i) keys += "\"key_" + std::to_string(i) + "\": 1, ";
  text.insert(text.find("\"unets\""), keys);
  CHECK(message_of([&] { parse_decoder_config(text, "a.json", {}); }) ==
        "a.json: /decoder: an object with more than 10000 keys");
}

TEST_CASE("embeddings may come from the shards, and an unconditional decoder needs none") {
  CHECK_NOTHROW(read_with({"/data/img_embeddings_url=null", "/data/embeddings_in_tar=true"}));
  CHECK_NOTHROW(read_with({"/data/embeddings_in_tar=true",
                           "/data/img_embeddings_url=null",
                           "/decoder/unets/0/cond_on_text_encodings=true",
                           "/decoder/unets/0/text_embed_dim=8"}));
  CHECK_NOTHROW(read_with({"/data/img_embeddings_url=null", "/decoder/unconditional=true"}));
  CHECK(read_with({"/decoder/unconditional=true"}).warnings ==
        std::vector<std::string>{
            "/data/img_embeddings_url: has no effect: decoder.unconditional is true"});
  CHECK_FALSE(read_with({R"(/data/text_embeddings_url="")"}).config.data.text_embeddings_url);
}

TEST_CASE("a clip model makes the embeddings that are not given") {
  const auto accepted = [](const std::vector<std::string>& assignments) {
    return message_of([&] { read_with(assignments, false, /*check_available=*/false); });
  };
  const std::vector<std::string> text = {"/decoder/clip={}",
                                         "/decoder/unets/0/cond_on_text_encodings=true",
                                         "/decoder/unets/0/text_embed_dim=8"};
  CHECK(accepted(text) == "no error");  // image embeddings from the files, text from clip
  CHECK(accepted({"/decoder/clip={}", "/data/img_embeddings_url=null"}) == "no error");
}

TEST_CASE("the kind of a config follows from its root key") {
  CHECK(config_kind(write_file("decoder.json", "{\"decoder\": 1}")) == "decoder");
  CHECK(config_kind(write_file("prior.json", "{\"prior\": 1}")) == "prior");
  CHECK(config_kind(write_file("vae.json", "{\"vae\": 1}")) == "vae");
  CHECK(config_kind(write_file("clip.json", "{\"clip\": 1}")) == "clip");
  const std::string none = write_file("none.json", "{\"train\": 1}");
  CHECK(message_of([&] { config_kind(none); }) ==
        none +
            ": has none of the root keys that say what is trained (\"decoder\", \"prior\", "
            "\"vae\" and \"clip\"); the examples in configs/ have one");
  const std::string near = write_file("near.json", "{\"decodr\": {}, \"train\": {}}");
  CHECK(
      message_of([&] { config_kind(near); }) ==
      near +
          ": has none of the root keys that say what is trained (\"decoder\", \"prior\", "
          "\"vae\" and \"clip\") (did you mean \"decoder\" instead of \"decodr\"?); the examples in "
          "configs/ have one");
  const std::string both = write_file("both.json", "{\"decoder\": 1, \"prior\": 2}");
  CHECK(message_of([&] { config_kind(both); }) ==
        both + ": has both \"decoder\" and \"prior\"; a config trains one of them");
}

TEST_CASE("a file of another program is recognised, with what to do") {
  const auto told = [](const std::string& name, const std::string& text) {
    return message_of([&] { config_kind(write_file(name, text)); });
  };
  const std::string draws =
      R"({"decoder": {"unet_sources": []}, "prior": {"load_model_from": {}}})";
  CHECK_THAT(told("draw.json", draws),
             Catch::Contains("this is a config of dalle2-laion (it has /decoder/unet_sources)") &&
                 Catch::Contains("`dalle2-train sample --pipeline FILE --clip"));
  CHECK_THAT(message_of([&] { parse_decoder_config(draws, "draw.json", {}); }),
             Catch::StartsWith("draw.json: this is a config of dalle2-laion"));
  CHECK_THAT(told("prior.json", R"({"prior": {"load_model_from": {}}})"),
             Catch::Contains("dalle2-laion"));
  CHECK_THAT(told("ViT-B-32.json", R"({"embed_dim": 512, "vision_cfg": {}, "text_cfg": {}})"),
             Catch::Contains("open_clip") && Catch::Contains("--kind clip"));
  CHECK_THAT(told("model_index.json", R"({"_class_name": "X", "unet": ["diffusers", "Y"]})"),
             Catch::Contains("diffusers") && Catch::Contains("init DATA"));
  CHECK_THAT(told("lora.json", R"({"pretrained_model_name_or_path": "x", "output_dir": "y"})"),
             Catch::Contains("kohya"));
  CHECK_THAT(told("lora.toml", "[general]\n"), Catch::Contains("expected a config in JSON"));
}

TEST_CASE("a config from a pipe is read once, and an empty pipe is no empty file") {
  test::TempDir folder;
  const std::string pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::thread writer([&] { std::ofstream(pipe) << "{\"vae\": {}}"; });
  CHECK(config_kind(pipe) == "vae");
  writer.join();
  CHECK(read_config_file(pipe) == "{\"vae\": {}}");
  const std::string empty = folder / "empty";
  REQUIRE(::mkfifo(empty.c_str(), 0600) == 0);
  std::thread closer([&] { std::ofstream{empty}; });
  CHECK_THAT(message_of([&] { read_config_file(empty); }), Catch::Contains("the pipe is empty"));
  closer.join();
}

}  // namespace dalle2
