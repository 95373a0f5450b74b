// SPDX-License-Identifier: MIT
#include <fstream>

#include "config/decoder/pipeline_config.h"
#include "config/minimal_config.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {

TEST_CASE("the rules of the data section are enforced") {
  const auto transform_rejects = [](const std::string& transform, const std::string& text) {
    rejects("/data/preprocessing={" + transform + R"(, "ToTensor": true})",
            "/data/preprocessing/" + text);
  };
  rejects("/data/splits/train=0.7",
          "/data/splits: train, val and test must sum to 1.0, found: 0.950000");
  rejects("/data/folder=pictures",
          "/data/webdataset_base_url: has no place beside folder: give one of the two");
  rejects(R"(/data={"folder": "pictures", "splits": {}, "embeddings_in_tar": true})",
          "/data/embeddings_in_tar: a folder of pictures holds no arrays: pack it by "
          "`dalle2-train shards make`, or give img_embeddings_url");
  rejects("/data/webdataset_base_url=shards.tar",
          R"(must contain {} exactly once, where the shard number goes, got "shards.tar")");
  rejects("/data/webdataset_base_url={}/{}.tar",
          R"(must contain {} exactly once, where the shard number goes, got "{}/{}.tar")");
  rejects(R"(/data/webdataset_base_url=["{}.tar", ""])", "must not hold an empty text");
  rejects("/data/webdataset_base_url=[]", "must have at least one entry, got none");
  for (const char* url : {R"(["a.tar", "b/{}.tar"])", "a/{000..123}.tar", "{a,b}.tar", "a::b"})
    CHECK_NOTHROW(read_with({std::string("/data/webdataset_base_url=") + url}));
  rejects({"/data/start_shard=5", "/data/end_shard=4"},
          "must not be less than start_shard (5), got 4");
  rejects("/data/resample_train=true",
          "Cannot both resample and shuffle: set shuffle_train (default true) or resample_train "
          "to false");
  rejects(R"(/data/preprocessing={"ToTensr": true})",
          R"(/data/preprocessing/ToTensr: no such transform; known are "RandomResizedCrop" )"
          R"("RandomHorizontalFlip" "Resize" "CenterCrop" "ColorJitter" "RandomRotation" )"
          R"("ToTensor"; did you mean "ToTensor"?)");
  expect_problems({R"(/data/preprocessing={"ToTensor": false})"},
                  {"/data/preprocessing: ToTensor is missing: pictures cannot be made "
                   R"(into a batch without it; add "ToTensor": true as the last transform)",
                   "warning: /data/preprocessing/ToTensor: false switches the transform off (the "
                   "reference applies it all the same)"});
  transform_rejects(R"("RandomResizedCrop": true)",
                    "RandomResizedCrop/size: required, but missing");
  transform_rejects(R"("Resize": 32)", R"(Resize: expected an object like {"size": 32}, got 32)");
  transform_rejects(R"("RandomRotation": [-5, 5])",
                    R"(RandomRotation: expected an object like {"degrees": [-5,5]}, got [-5,5])");
  transform_rejects(R"("Resize": {"size": [1,2,3]})",
                    "Resize/size: must have 1 to 2 entries, got 3");
  transform_rejects(R"("CenterCrop": true)", "CenterCrop/size: required, but missing");
  transform_rejects(R"("RandomResizedCrop": {"size": 8, "scale": [1, 0.5]})",
                    "RandomResizedCrop/scale: must be a range [low, high] with low <= high");
  transform_rejects(R"("Resize": {"size": 8, "interpolation": "cubic"})",
                    R"(Resize/interpolation: expected one of "nearest" "lanczos" "bilinear" )"
                    R"("bicubic" "box" "hamming" "nearest_exact", got "cubic")");
  transform_rejects(R"("ColorJitter": {"hue": -0.1})",
                    "ColorJitter/hue: must not be negative if it is one number");
  transform_rejects(R"("ColorJitter": {"hue": [0.2, -0.2]})",
                    "ColorJitter/hue: must be a range [low, high] with low <= high");
  transform_rejects(R"("ColorJitter": {"degrees": 3})",
                    "ColorJitter/degrees: no such key; known are: antialias brightness contrast "
                    "saturation hue");
  transform_rejects(R"("RandomRotation": true)", "RandomRotation/degrees: required, but missing");
  transform_rejects(R"("RandomRotation": {"degrees": [90, -90]})",
                    "RandomRotation/degrees: must be a range [low, high] with low <= high");
  transform_rejects(R"("RandomRotation": {"degrees": 5, "fill": [1, 2]})",
                    "RandomRotation/fill: must be one value or three, got 2");
  rejects(R"(/data/img_embeddings_url="")", "must not be empty");
}

TEST_CASE("whether EXIF counts is settled by the kind of data, and kept with the config") {
  CHECK(read_with({}).config.data.apply_exif == false);
  const std::string folder = R"(/data={"folder": "pictures", "splits": {}})";
  const LoadedDecoderConfig of_folder = read_with({folder, "/decoder/unconditional=true"});
  CHECK(of_folder.config.data.apply_exif == true);
  CHECK(Json::parse(of_folder.full_json)["data"]["apply_exif"] == true);
  CHECK(read_with({folder, "/decoder/unconditional=true", "/data/apply_exif=false"})
            .config.data.apply_exif == false);
  rejects("/decoder/channels=5", "must be 1, 3 or 4, got 5");
}

TEST_CASE("the rules of the tracker section are enforced") {
  rejects("/tracker/log/log_type=wandbb",
          "Unknown logger type: wandbb. Must be one of ['console', 'wandb', 'tensorboard']; did "
          R"(you mean "wandb"?)");
  rejects(R"(/tracker/log={"log_type": "tensorboard", "log_dir": ""})",
          "/tracker/log/log_dir: must not be empty");
  rejects(R"(/tracker/load={"load_from": "disk"})",
          "/tracker/load/load_from: Unknown loader type: disk. Must be one of ['local', 'url', "
          "'huggingface', 'wandb']");
  rejects("/tracker/save/save_to=ftp",
          "Unknown saver type: ftp. Must be one of ['local', 'wandb', 'huggingface', 'url', 's3']");
  rejects(R"(/tracker/load={"load_from": "local"})",
          "/tracker/load/file_path: required, but missing");
  rejects("/tracker/save/save_latest_to=true",
          "expected a path, or false or null for none, got true");
  rejects("/tracker/save/save_latest_to=false",
          "/tracker/save: At least one saving option must be specified: save_latest_to, "
          "save_best_to or save_meta_to");
  rejects("/tracker/save/save_latest_to=../latest.pth",
          R"(must not contain "..", got "../latest.pth")");
  rejects("/tracker/save/save_latest_to=a/{epok}.pth",
          "unknown placeholder {epok}: known are {epoch}, {sample}, {next_task}, "
          "{validation_losses}, {samples_seen}");
  rejects("/tracker/save/save_best_to={next_task:03d}.pth",
          "'{next_task:03d}' is no form of a placeholder; there are {name}, {list[0]}, "
          "{name:06d} of a whole number, {name:.3f} and {name:.2e} of a number, with any width "
          "and precision up to 999");
  rejects("/tracker/save/save_best_to=a}b",
          "a single '}' in 'a}b': write '}}' for the brace itself");
  // The placeholders of a prior mean nothing here; specs of any length are read without harm.
  rejects("/tracker/save/save_latest_to={best_validation_loss}.pth",
          "unknown placeholder {best_validation_loss}: known are {epoch}, {sample}, {next_task}, "
          "{validation_losses}, {samples_seen}");
  CHECK_THAT(
      message_of([] {
        read_with({"/tracker/save/save_latest_to={epoch:" + std::string(1000000, '1') + "}"});
      }),
      Catch::Contains("/tracker/save/save_latest_to: '{epoch:1111") &&
          Catch::Contains("1...}' is no form of a placeholder"));
  rejects("/tracker/save/save_meta_to=a/..", R"(must not contain "..", got "a/..")");
  rejects(R"(/tracker/log={"log_type": "wandb", "wandb_entity": null, "wandb_project": "p"})",
          "/tracker/log/wandb_entity: wandb_entity must be specified for wandb logger, got null");
  // Offline, nothing asks whose the project is.
  for (const char* mode : {"offline", "disabled"}) {
    setenv("WANDB_MODE", mode, 1);
    CHECK_NOTHROW(read_with({R"(/tracker/log={"log_type": "wandb", "wandb_project": "p"})"}));
  }
  setenv("WANDB_MODE", "online", 1);
  rejects(R"(/tracker/log={"log_type": "wandb", "wandb_project": "p"})",
          "/tracker/log/wandb_entity: required, but missing");
  unsetenv("WANDB_MODE");
  rejects(
      R"(/tracker/log={"log_type": "wandb", "wandb_entity": "e", "wandb_project": "p", "resume": true})",
      "/tracker/log/wandb_run_id: must be given with resume: the run to continue");
}

TEST_CASE("the embeddings must come from exactly the places that are used") {
  rejects({"/decoder/unets/0/cond_on_text_encodings=true", "/decoder/unets/0/text_embed_dim=8"},
          "/data/text_embeddings_url: If text conditioning, either clip or text_embeddings_url "
          "must be provided (or set embeddings_in_tar to true)");
  rejects("/data/text_embeddings_url=text",
          "Text embeddings are being loaded, but text embeddings are not being conditioned on. "
          "Remove text_embeddings_url, or set cond_on_text_encodings for a unet");
  rejects("/data/img_embeddings_url=null",
          "No image embeddings source specified: give img_embeddings_url, set embeddings_in_tar "
          "to true, or set decoder.unconditional to true");
  rejects("/decoder/clip={}",
          "Loaded clip, but also provided img_embeddings_url. This is redundant. Remove the clip "
          "model or the embeddings");
  rejects({"/decoder/clip={}",
           "/decoder/unets/0/cond_on_text_encodings=true",
           "/decoder/unets/0/text_embed_dim=8",
           "/data/text_embeddings_url=text"},
          "/decoder/clip: Loaded clip, but also provided text_embeddings_url and "
          "img_embeddings_url. This is redundant. Remove the clip model or the embeddings");
}

TEST_CASE("precision and what to do about numbers that are not finite are read") {
  const LoadedDecoderConfig loaded =
      read_with({"/train/mixed_precision=bf16", "/train/non_finite/action=roll_back"});
  CHECK(loaded.warnings.empty());
  CHECK(loaded.config.train.mixed_precision == MixedPrecision::bf16);
  CHECK(loaded.config.train.non_finite.action == NonFiniteAction::roll_back);
  CHECK_FALSE(read_with({}).config.train.mixed_precision);
}

TEST_CASE("places in a network are checked as far as their text tells") {
  rejects(R"(/tracker/load={"load_from": "url", "url": "ftp://u:canary@h/f?canary"})",
          "/tracker/load/url: expected an address that begins with https://, http://, file:, "
          R"(s3:// or hf://, got "ftp://h/f")");
  rejects(R"(/tracker/load={"load_from": "url", "url": "latest.pth"})",
          "/tracker/load/url: expected an address that begins with https://, http://, file:, "
          R"(s3:// or hf://, got "latest.pth"; for a file of this machine use "load_from": )"
          R"("local" with its file_path)");
  rejects(R"(/tracker/load={"load_from": "url", "url": "https://h/f", "sha256": "abc"})",
          R"(/tracker/load/sha256: expected 64 hexadecimal digits, got "abc")");
  for (const char* repo : {"o", "o/", "/r", "o/r/s", "o/r s", "o/.."}) {
    expect_problems(
        {fmt::format(R"(/tracker/save={{"save_to": "huggingface", "huggingface_repo": "{}", )"
                     R"("save_best_to": "b"}})",
                     repo)},
        {fmt::format("/tracker/save/huggingface_repo: expected owner/name, of letters, digits, "
                     "'-', '.' and '_', got \"{}\"",
                     repo)});
  }
  rejects(R"(/tracker/save={"save_to": "s3", "url": "s3:///x", "save_best_to": "b"})",
          R"(/tracker/save/url: expected s3://BUCKET/FOLDER, got "s3:///x")");
  rejects(R"(/tracker/save={"save_to": "url", "url": "https://h/f#canary", "save_best_to": "b"})",
          "/tracker/save/url: must have no '#': names are appended to it, got one in "
          R"("https://h/f")");
}

TEST_CASE("two savers whose urls differ only in what is not shown are refused") {
  const auto savers = [](const char* latest, const char* best) {
    return fmt::format(
        R"(/tracker/save=[{{"save_to": "url", "url": "{}", "save_latest_to": "l"}}, )"
        R"({{"save_to": "url", "url": "{}", "save_best_to": "b"}}])",
        latest,
        best);
  };
  for (const char* best : {"https://h/p?file=best", "https://u:canary@h/p", "https://h/p"}) {
    expect_problems(
        {savers("https://h/p?file=latest", best)},
        {"/tracker/save: two savers differ only in the login or query of their url, "
         "which is not shown or stored: give both targets to one of them, or put a part "
         "of the path from one url into its targets"});
  }
  CHECK_NOTHROW(read_with({savers("https://h/p?s=1", "https://h/best?s=1")}));
}

TEST_CASE("where a run logged and saved does not keep its stored config from being read") {
  const std::string offline =
      file_with(kMinimalConfig,
                {R"(/tracker/log={"log_type": "wandb", "wandb_project": "p"})",
                 R"(/tracker/save={"save_to": "url", "url": null, "save_latest_to": "l"})"});
  ReadOptions stored;
  stored.part = ConfigPart::stored;
  CHECK(parse_decoder_config(offline, "a.pth", stored).plan.stages.size() == 1);
  stored.part = ConfigPart::whole;
  CHECK(message_of([&] {
          parse_decoder_config(offline, "a.json", stored);
        }).find("/tracker/save/url") != std::string::npos);
}

TEST_CASE("what a file of dalle2-laion asks for without effect is said") {
  const test::TempDir folder;
  const std::string path = folder / "pipeline.json";
  const auto read = [&](const std::string& rest) {
    std::ofstream(path) << R"({"decoder": {"unet_sources": [{"unet_numbers": [1], )" + rest +
                               "}]}}";
    return load_pipeline_config(path);
  };
  const test::CapturedLog log;
  const std::string files = R"("load_model_from": {"path": "d.pth", "checksum_file_path": "d.sum",
    "cache_dir": null}, "default_cond_scale": null, "load_config_from": {"path": "d.json", "checksum_file_path": "e.sum"})";
  CHECK(read(files).decoder.unet_sources.size() == 1);
  CHECK(
      log.text() ==
      "config: " + path +
          ": without effect here: checksum_file_path\n  --clip and --device name the CLIP and the "
          "device; what is fetched is neither kept nor compared with a checksum.\n");
  CHECK_THROWS_WITH(read(files + R"(, "default_sample_timesteps": [-5])"),
                    Catch::Contains("/decoder/unet_sources/0/default_sample_timesteps"));
  for (const auto& [content, missing] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "/decoder"},
           {R"({"decoder": null})", "/decoder"},
           {R"({"decoder": {}})", "/decoder/unet_sources"},
           {R"({"decoder": {"unet_sources": [{"load_model_from": {"path": "a"}}]}})",
            "/decoder/unet_sources/0/unet_numbers"},
           {R"({"decoder": {"unet_sources": [{"unet_numbers": [1]}]}})",
            "/decoder/unet_sources/0/load_model_from"},
           {R"({"decoder": {"unet_sources": [{"unet_numbers": [1], "load_model_from": {}}]}})",
            "/decoder/unet_sources/0/load_model_from/path"}}) {
    std::ofstream(path) << content;
    CHECK(message_of([&] { load_pipeline_config(path); }) ==
          path + ": 1 problem\n  " + missing + ": required, but missing");
  }
  for (const auto& [content, has] : std::vector<std::pair<std::string, std::string>>{
           {R"({"decoder": {"unets": []}, "data": {}, "seed": 0})", "/decoder/unets"},
           {R"({"prior": {"net": {}}, "train": {}})", "/prior/net"},
           {R"({"vae": {}, "data": {}})", "/data"}}) {
    std::ofstream(path) << content;
    CHECK(message_of([&] { load_pipeline_config(path); }) ==
          path + ": this is a training config (it has " + has +
              "), and --pipeline takes one of dalle2-laion\n  Give it as --config with its "
              "--checkpoint, or as --prior-config with its --prior.");
  }
}

TEST_CASE("a W&B loader or saver without a run needs the logger whose run is meant") {
  const std::string no_run =
      "wandb_run_path must be given (entity/project/run_id), for there is no W&B logger whose run "
      "could be meant";
  const std::string load = R"(/tracker/load={"load_from": "wandb", "wandb_file_path": "f.pth"})";
  const std::string save = R"(/tracker/save={"save_to": "wandb", "save_latest_to": "l.pth"})";
  expect_problems({load}, {"/tracker/load: " + no_run});
  expect_problems({save}, {"/tracker/save: " + no_run});
  const std::string logger =
      R"(/tracker/log={"log_type": "wandb", "wandb_entity": "e", "wandb_project": "p"})";
  CHECK_NOTHROW(read_with({logger, load, save}));
  CHECK_NOTHROW(read_with({R"(/tracker/load={"load_from": "wandb", "wandb_file_path": "f.pth", )"
                           R"("wandb_run_path": "e/p/i"})"}));
}

TEST_CASE("a token in a config is refused, and never shown") {
  const std::string hub = R"(/tracker/save={"save_to": "huggingface", "huggingface_repo": "o/r", )"
                          R"("save_best_to": "b", )";
  const std::string refused =
      ": no such key, and no place for a secret: tokens, keys and passwords come from the "
      "environment or from files (docs/tracking.md lists them). Remove it, and withdraw it if "
      "others have seen this file";
  for (const char* key : {"token", "hf_token", "api-key", "AWS_SECRET_ACCESS_KEY", "password"}) {
    expect_problems({hub + fmt::format(R"("{}": "canary"}})", key)},
                    {fmt::format("/tracker/save/{}", key) + refused});
  }
  expect_problems({hub + R"("token_path": "hf_AbCdEfGhIjKlMnOpQrStUv"})"},
                  {"/tracker/save/token_path: looks like a token; expected the name of a file that "
                   "holds one. A token does not belong into a config: give it as HF_TOKEN, and "
                   "withdraw this one if others have seen the file"});
  CHECK_NOTHROW(read_with({hub + R"("token_path": "secrets/hf_token.txt"})"}));
  // As a value of the wrong type, in the wrong place, and in JSON that breaks off.
  const std::string token = "hf_CanaryEfGhIjKlMnOpQrStUvWxYz0123";
  for (const std::string& assignment :
       {hub + fmt::format(R"("token_path": ["{}"]}})", token),
        hub + fmt::format(R"("token_path": {{"{}": 1}}}})", token),
        fmt::format(R"(/tracker/save={{"save_to": "huggingface", "huggingface_repo": "{}"}})",
                    token),
        fmt::format(R"(/tracker/save={{"token_path": "{}")", token),
        fmt::format(R"(/tracker/log={{"log_type": "wandb", "{}": 1}})", token),
        fmt::format("/tracker/save/save_to={}", token),
        fmt::format("/train/{}/x/y=1", token),
        fmt::format("/train/epochs/{}=1", token),
        token}) {
    const std::string message = message_of([&] { read_with({assignment}); });
    INFO(assignment << "\n" << message);
    CHECK(message != "no error");
    CHECK(message.find("Canary") == std::string::npos);
  }
  for (const char* key : {"key", "pwd"})
    expect_problems({fmt::format(R"(/tracker/log={{"log_type": "console", "{}": "canary"}})", key)},
                    {fmt::format("/tracker/log/{}", key) + refused});
  expect_problems({R"(/HF_TOKEN="hf_canary")"}, {"/HF_TOKEN" + refused});
  expect_problems({R"(/train/wandb_api_key="canary")"}, {"/train/wandb_api_key" + refused});
  // Elsewhere a word is a word.
  const std::string words = file_with(kMinimalConfig, {"/train/tokenizer_tokens=1"});
  CHECK_NOTHROW(parse_decoder_config(words, "test.json", {}));
}

TEST_CASE("a CLIP score needs a CLIP") {
  rejects("/evaluate/clip_score={}",
          R"(/evaluate/clip_score/clip: must be given, as there is no decoder.clip: {"model": )"
          R"("clip.pth"})");
  CHECK_NOTHROW(read_with({R"(/evaluate/clip_score={"clip": {"model": "c.pth"}})"}));
  CHECK_NOTHROW(read_with({"/evaluate/clip_score={}",
                           R"(/decoder/clip={"model": "c.pth"})",
                           "/data/img_embeddings_url=null"}));
}

TEST_CASE("a CLIP of x-clip needs the arguments it was made with, and each is checked") {
  const auto with_clip = [](const std::string& clip) {
    return std::vector<std::string>{"/decoder/clip=" + clip, "/data/img_embeddings_url=null"};
  };
  const auto with_arguments = [&](const std::string& arguments) {
    return with_clip(R"({"make": "x-clip", "model": "c.pt", "base_model_kwargs": )" + arguments +
                     "}");
  };
  const std::string at = "/decoder/clip/base_model_kwargs";
  CHECK_NOTHROW(read_with(with_arguments("{}")));
  CHECK_NOTHROW(read_with(with_arguments(
      R"({"use_mlm": true, "mlm_mask_prob": 0.2, "use_visual_ssl": true, "sim_reg_loss_weight": 1})")));
  expect_problems(with_clip(R"({"make": "x-clip", "model": "c.pt"})"),
                  {at + ": required with \"make\": \"x-clip\", but missing: the arguments that the "
                        "CLIP was made with, as the weights do not say all of them"});
  for (const char* const key : {"quick_gelu", "heads"}) {
    const std::string value = key == std::string("heads") ? "[1, 2]" : "true";
    expect_problems(with_clip(R"({"make": "x-clip", "model": "c.pt", "base_model_kwargs": {}, ")" +
                              std::string(key) + "\": " + value + "}"),
                    {std::string("/decoder/clip/") + key +
                     ": has no meaning with \"make\": \"x-clip\": give base_model_kwargs"});
  }
  expect_problems(with_clip(R"({"make": "x-clip", "base_model_kwargs": {}})"),
                  {"/decoder/clip/model: required with \"make\": \"x-clip\", but missing: the file "
                   "with the state dict of the CLIP"});
  CHECK_THAT(message_of([&] { read_with(with_arguments(R"({"width": 8})")); }),
             Catch::Contains(at + "/width: no such key; known are: dim_text dim_image dim_latent"));
  expect_problems(with_arguments(R"({"dim_texts": 8})"),
                  {at + "/dim_texts: no such key; did you mean \"dim_text\"?"});
  expect_problems(
      with_arguments(R"({"visual_image_size": 30, "visual_patch_size": 4,
                                     "text_causal_mask": true, "downsample_image_embeds": true,
                                     "channels": 1, "text_rotary_pos_emb": true,
                                     "text_dim_head": 5})"),
      {at + "/visual_patch_size: must divide visual_image_size, 30; got 4",
       at + "/text_dim_head: must be even, or 32 and more, for rotary embeddings; got 5",
       at + "/text_causal_mask: must be false: a causal text transformer has no class "
            "token, and the embedding of a text is that of this token, as in the "
            "reference's adapter",
       at + "/downsample_image_embeds: must be false: the embedding of a picture is that "
            "of its class token, which is no map that could be halved",
       at + "/channels: must be 3, got 1"});
  expect_problems(
      with_clip(R"({"model": "c.pt", "base_model_kwargs": {"dim_text": 8}})"),
      {at + ": has a meaning with \"make\": \"x-clip\" alone, and it is \"openai\": the file says "
            "what its networks are; leave it out"});
}

TEST_CASE("what has not landed yet is refused by name") {
  rejects("/data/webdataset_base_url=gs://b/{}.tar",
          "data comes from files, http://, https://, s3://, hf:// and pipe:COMMAND; for other "
          R"(places use "pipe:" and a command that writes the file, got "gs://b/{}.tar")");
  for (const char* url : {"http://h/{}.tar", "s3://b/{}.tar", "hf://o/n/{}.tar", "file:{}.tar"})
    CHECK_NOTHROW(read_with({std::string("/data/webdataset_base_url=") + url}));
  rejects("/prior={}",
          "has no place here: this needs the config of a decoder, and a file trains one kind");
}

TEST_CASE("the rules of adapters are enforced") {
  rejects("/train/lora/targets=[]", "must have at least one entry, got none");
  const LoadedDecoderConfig loaded = read_with({"/train/lora/rank=4",
                                                "/train/frozen_dtype=bf16",
                                                "/tracker/save/save_type=lora",
                                                R"(/train/lora/targets=["to_q"])"});
  CHECK(loaded.config.train.lora.strength() == 4);
  CHECK(read_with({R"(/train/lora={"rank": 4, "alpha": 6})"}).config.train.lora.strength() == 6);
}

}  // namespace dalle2
