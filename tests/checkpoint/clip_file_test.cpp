// SPDX-License-Identifier: MIT
// What is wrong with a CLIP's file is said by file, tensor or pointer. That files of others are read
// rightly is seen in tests/model/clip_file_test.cpp.
#include "checkpoint/clip/clip_file.h"

#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/checkpoint_test_tools.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/fixture.h"
#include "support/message_of.h"

namespace dalle2::test {
namespace {

using Catch::Contains;
using Catch::EndsWith;

constexpr auto fixture = clip_fixture;

/// The tensors of a file of a fixture.
StateDict tensors_of(const std::string& name) {
  return read_safetensors(fixture(name)).tensors;
}

at::Tensor& entry(StateDict& tensors, const std::string& name) {
  for (auto& [each, tensor] : tensors)
    if (each == name) return tensor;
  FAIL("no tensor " << name);
  throw std::logic_error(name);
}

void drop(StateDict& tensors, const std::string& name) {
  REQUIRE(std::erase_if(tensors, [&](const auto& item) { return item.first == name; }) == 1);
}

/// The error that reading these tensors from a folder of their own ends with.
std::string refusal(const StateDict& tensors, const std::string& open_clip_config = "") {
  const TempDir folder;
  const std::string path = folder / "clip.safetensors";
  write_safetensors(path, tensors);
  if (!open_clip_config.empty()) put_file(folder / "open_clip_config.json", open_clip_config);
  return message_of<DataError>([&] { read_clip_file(path); });
}

const std::string kOpenClip = "open_clip/open_clip_model.safetensors";
const std::string kHuggingFace = "hugging_face/model.safetensors";

TEST_CASE("a file that is no CLIP is refused by the tensor that is missing") {
  // Names of a CoCa of coca-pytorch, which the reference takes.
  CHECK_THAT(refusal({{"text_cls_token", at::ones({2})}, {"img_queries", at::ones({2, 2})}}),
             Contains("not a CLIP as OpenAI, open_clip, Hugging Face or x-clip write it") &&
                 Contains("'positional_embedding' is missing"));
  for (const char* name : {"token_embedding.weight",
                           "text_projection",
                           "visual.conv1.weight",
                           "visual.positional_embedding",
                           "transformer.resblocks.0.mlp.c_fc.weight"}) {
    StateDict tensors = tensors_of(kOpenClip);
    drop(tensors, name);
    CHECK_THAT(refusal(tensors), Contains(std::string("'") + name + "' is missing"));
  }
}

TEST_CASE("tensors of impossible shapes are refused by name") {
  const auto with = [](const char* name, const at::Tensor& tensor) {
    StateDict tensors = tensors_of(kOpenClip);
    entry(tensors, name) = tensor;
    return refusal(tensors);
  };
  CHECK_THAT(
      with("visual.positional_embedding", at::ones({9, 8})),
      Contains("'visual.positional_embedding' has 9 rows") && Contains("square number and one"));
  CHECK_THAT(with("visual.positional_embedding", at::ones({1, 8})), Contains("has 1 rows"));
  CHECK_THAT(with("visual.conv1.weight", at::ones({8, 3})),
             Contains("'visual.conv1.weight': expected 4 dimensions") && Contains("got [8, 3]"));
  CHECK_THAT(with("token_embedding.weight", at::ones({514, 0})), Contains("got [514, 0]"));
  StateDict tensors = tensors_of(kOpenClip);
  entry(tensors, "visual.conv1.weight") = at::ones({64, 3, 4, 4});
  entry(tensors, "token_embedding.weight") = at::ones({100, 8});
  CHECK_THAT(refusal(tensors), Contains("/text_cfg/vocab_size") && Contains("100"));
}

TEST_CASE("without a config beside it a CLIP's heads are 64 wide, but for those of known others") {
  StateDict tensors = tensors_of(kOpenClip);
  const TempDir folder;
  const std::string path = folder / "clip.safetensors";
  write_safetensors(path, tensors);
  CHECK_THAT(message_of<ConfigError>([&] { read_clip_file(path); }),
             Contains("heads: expected a divisor of 8, the width of the image tower, got none") &&
                 Contains("--clip-config"));
  entry(tensors, "visual.conv1.weight") = at::ones({1280, 3, 4, 4});
  CHECK(clip_shape_of(tensors, "t").vision_cfg.heads() == 16);
  entry(tensors, "visual.conv1.weight") = at::ones({768, 3, 4, 4});
  CHECK(clip_shape_of(tensors, "t").vision_cfg.heads() == 12);
  const ClipNetworkConfig config = clip_shape_of(tensors, "t");
  CHECK(config.embed_dim == 6);
  CHECK(config.vision_cfg.layers.at(0) == 2);
  CHECK(config.vision_cfg.image_size == 12);
  CHECK(config.text_cfg.context_length == 6);
  CHECK(config.text_cfg.layers == 1);
  CHECK(static_cast<int64_t>(config.text_cfg.mlp_ratio * 8) == 29);
}

TEST_CASE("what open_clip_config.json says wrongly is refused by its pointer") {
  const StateDict tensors = tensors_of(kOpenClip);
  CHECK_THAT(refusal(tensors, "{"), Contains("open_clip_config.json"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {"embed_dim": -1}})"),
             Contains("open_clip_config.json") && Contains("/embed_dim"));
  CHECK_THAT(refusal(tensors, R"({"embed_dim": 6, "vision_cfg": {"timm_model_name": "vit_x"}})"),
             Contains("/vision_cfg/timm_model_name: \"vit_x\": only OpenAI's networks"));
  CHECK_THAT(refusal(tensors, R"({"embed_dim": 6, "text_cfg": {"hf_model_name": "roberta"}})"),
             Contains("/text_cfg/hf_model_name"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {}, "preprocess_cfg": {"std": [0, 1, 1]}})"),
             Contains("/preprocess_cfg/std/0: must be > 0"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {}, "preproces_cfg": {}})"),
             Contains("open_clip_config.json: /preproces_cfg: no such key; known are: model_cfg, "
                      "preprocess_cfg"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {"zzz": 1}})"),
             EndsWith("open_clip_config.json: /model_cfg/zzz: no such key; known are: embed_dim, "
                      "vision_cfg, text_cfg, quick_gelu, init_logit_scale"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {"text_cfg": {"hf_model_name": "roberta"}}})"),
             Contains("open_clip_config.json: /model_cfg/text_cfg/hf_model_name: \"roberta\": "));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {"vision_cfg": {"zzz": 1}}})"),
             Contains("\n    /model_cfg/vision_cfg/zzz: no such key; known are: layers"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {}, "preprocess_cfg": [1]})"),
             EndsWith("/preprocess_cfg: expected an object, got [1]"));
  CHECK_THAT(refusal(tensors, R"({"model_cfg": {}, "preprocess_cfg": {"stdd": [1, 1, 1]}})"),
             EndsWith("open_clip_config.json: /preprocess_cfg/stdd: no such key; known are: mean, "
                      "std, interpolation, resize_mode, fill_color"));
}

TEST_CASE("a tensor that Hugging Face's CLIP lacks is named as Hugging Face names it") {
  for (const char letter : {'q', 'k', 'v'}) {
    const std::string name =
        std::string("text_model.encoder.layers.1.self_attn.") + letter + "_proj.bias";
    StateDict tensors = tensors_of(kHuggingFace);
    drop(tensors, name);
    CHECK_THAT(refusal(tensors),
               Contains("clip.safetensors: the tensor '" + name + "' is missing"));
  }
  StateDict tensors = tensors_of(kHuggingFace);
  entry(tensors, "vision_model.encoder.layers.0.self_attn.v_proj.weight") = at::ones({12, 11});
  CHECK_THAT(refusal(tensors), Contains("v_proj.weight' is of another shape than"));
}

TEST_CASE("heads and activation of Hugging Face's CLIP come from its config.json") {
  ClipNetworkConfig config =
      clip_shape_of(open_clip_names(tensors_of(kHuggingFace), "t").tensors, "t");
  const auto apply = [&](const char* text) {
    apply_hugging_face_config(Json::parse(text), "config.json", config);
  };
  const std::pair<const char*, const char*> refused[] = {
      {R"({"vision_config": {"hidden_act": "relu"}})",
       "/vision_config/hidden_act: expected \"gelu\" or \"quick_gelu\""},
      {R"({"text_config": {"hidden_act": "gelu"}})",
       "/text_config/hidden_act: expected \"quick_gelu\", as in /vision_config, got \"gelu\""},
      {R"({"text_config": {"num_attention_heads": "2"}})",
       "/text_config/num_attention_heads: expected a whole number, got \"2\""},
      {R"({"vision_config": {"num_attention_heads": 0}})",
       "expected a divisor of the width 12, got 0"},
      {R"({"vision_config": {"num_attention_heads": 5}})",
       "/vision_config/num_attention_heads: expected a divisor of the width 12, got 5"},
      {R"({"text_config": {"num_attention_heads": 3}})",
       "/text_config/num_attention_heads: expected a divisor of the width 8"},
      {R"({"vision_config": {"num_hidden_layers": 2}})",
       "/vision_config/num_hidden_layers: expected 1, as the weights have, got 2"},
      {R"({"model_type": "metaclip_2"})", "/model_type: expected \"clip\", got \"metaclip_2\""},
      {R"({"quantization_config": {"bits": 4}})",
       "config.json: /quantization_config: no such key of a CLIPModel"},
      {R"({"text_config": {"causal": false}})", "/text_config/causal: no such key"},
      {R"({"vision_config_dict": {"pool": "avg"}})", "/vision_config_dict/pool: no such key"}};
  for (const auto& [text, reason] : refused) {
    INFO(text);
    CHECK_THROWS_WITH(apply(text), Contains(reason));
  }
}

TEST_CASE("a program cut off or damaged, and one that is no CLIP, is refused") {
  const TempDir folder;
  const std::string whole = read_file(fixture("openai/tiny.pt"));
  REQUIRE(whole.size() > 100'000);
  const std::string path = folder / "tiny.pt";
  put_file(path, whole.substr(0, whole.size() / 2));
  CHECK_THROWS_AS(read_clip_file(path), DataError);
  std::string damaged = whole;
  const size_t place = whole.size() / 2;
  damaged[place] = static_cast<char>(damaged[place] ^ 1);
  put_file(path, damaged);
  CHECK_THROWS_AS(read_clip_file(path), DataError);
  CHECK_THROWS_WITH(read_script_attributes(fixture("open_clip/epoch_3.pt")),
                    Contains("expected a TorchScript program"));
  CHECK_THROWS_AS(read_clip_file(folder / "absent.pt"), DataError);
}

/// A program of modules that stand in two places each, so that there are 2^levels paths; or in one.
void write_nested_program(const std::string& path, int levels, bool is_shared) {
  using namespace std::string_literals;
  std::string pickle = "\x80\x02"s;
  for (int level = 0; level <= levels; ++level) {
    const auto number = [](int value) { return std::string(1, static_cast<char>(value)); };
    pickle += "c__torch__\nM\n)\x81}"s;
    if (level > 0) {
      const std::string inner = "h" + number(level - 1);
      pickle += "(X\1\0\0\0a"s + inner + (is_shared ? "X\1\0\0\0b"s + inner : ""s) + "u";
    }
    pickle += "bq" + number(level) + (level < levels ? "0" : ".");
  }
  AtomicFile file(path);
  ZipWriter zip(file);
  zip.add("net/data.pkl", pickle);
  zip.add("net/constants.pkl", "\x80\x02)."s);
  zip.add("net/code/__torch__.py", "");
  zip.add("net/version", "3\n");
  zip.finish();
  file.commit();
}

TEST_CASE("a program whose modules share each other is read in the time that its bytes take") {
  const TempDir folder;
  const std::string path = folder / "shared.pt";
  write_nested_program(path, 60, /*is_shared=*/true);
  CHECK_THROWS_WITH(read_clip_file(path), Contains("not a CLIP as OpenAI"));
  write_nested_program(path, 100, /*is_shared=*/false);
  CHECK_THROWS_WITH(read_clip_file(path), Contains("is nested deeper than 200 levels"));
}

TEST_CASE("a config that the weights do not fit is refused before anything is built by it") {
  const auto with = [](const std::string& key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(read_file(fixture("open_clip/open_clip_config.json")));
    config[nlohmann::json::json_pointer("/model_cfg" + key)] = value;
    return refusal(tensors_of(kOpenClip), config.dump());
  };
  CHECK(with("/embed_dim", 6) == "nothing was thrown");
  CHECK(with("/vision_cfg/image_size", 14) ==
        "nothing was thrown");  // two pixels that no patch covers
  const std::string another = "but the weights in ";
  CHECK_THAT(with("/text_cfg/width", 16384),
             Contains("open_clip_config.json: /model_cfg/text_cfg/width: is 16384, " + another) &&
                 Contains("of another network: 8"));
  CHECK_THAT(with("/embed_dim", 8), Contains("/embed_dim: is 8, " + another));
  CHECK_THAT(with("/vision_cfg/layers", 3), Contains("/vision_cfg/layers: is 3, " + another));
  CHECK_THAT(with("/vision_cfg/image_size", 16), Contains("/vision_cfg/image_size: is 16, "));
  CHECK_THAT(with("/text_cfg/vocab_size", 1 << 24),
             Contains("/text_cfg/vocab_size: is 16777216, "));
  CHECK_THAT(with("/text_cfg/mlp_ratio", 4.0), Contains("/text_cfg/mlp_ratio: is 4.0, "));
}

TEST_CASE("the parameters of OpenAI's program come without a run of its code") {
  const ClipFile clip = read_clip_file(fixture("openai/tiny.pt"));
  CHECK(clip.config.quick_gelu);
  CHECK(find_tensor(clip.weights, "input_resolution") == nullptr);
  REQUIRE(find_tensor(clip.weights, "visual.proj") != nullptr);
  CHECK(find_tensor(clip.weights, "visual.proj")->scalar_type() == at::kHalf);
  CHECK(find_tensor(clip.weights, "ln_final.weight")->scalar_type() == at::kFloat);
}

/// A state dict that fits heads of 64, and lies alone.
std::string put_bare(const TempDir& folder) {
  const std::string path = folder / "clip.safetensors";
  write_safetensors(path, read_clip_file(fixture("openai/tiny.pt")).weights);
  return path;
}

TEST_CASE("what a state dict without config does not say is assumed with a warning, or is given") {
  const TempDir folder;
  const std::string path = put_bare(folder);
  const auto read = [&](const ClipFileHints& hints, long warnings) {
    const CapturedLog log;
    const ClipNetworkConfig config = read_clip_file(path, hints).config;
    CHECK(log.count("clip.safetensors: the weights do not say all that this CLIP computes, and no "
                    "open_clip_config.json lies beside them: taken are ") == warnings);
    return config;
  };
  CHECK_FALSE(read({}, 1).quick_gelu);
  CHECK(read({.quick_gelu = true}, 1).quick_gelu);
  const ClipNetworkConfig given = read({.quick_gelu = true, .heads = {{2, 4}}}, 0);
  CHECK(given.vision_cfg.head_width == 32);
  CHECK(given.text_cfg.heads == 4);
  CHECK_THAT(
      test::message_of<ConfigError>([&] {
        read_clip_file(path, {.heads = {{3, 1}}});
      }),
      Contains("clip.safetensors: heads: expected a divisor of 64, the width of the image tower, "
               "got 3"));
  ClipNetworkConfig config = read({}, 1);
  config.image_resize_mode = "squash";
  put_file(folder / "own.json", open_clip_config_of(config).dump());
  CHECK(read({.config_path = folder / "own.json"}, 0).image_resize_mode == "squash");
}

TEST_CASE("a caller does not say what a config beside a CLIP says") {
  const std::string path = fixture(kOpenClip);
  const std::string why = "\"quick_gelu\" and \"heads\" are for a file without a config, and ";
  CHECK_THAT(test::message_of<ConfigError>([&] { read_clip_file(path, {.quick_gelu = true}); }),
             Contains(why) && Contains("open_clip_config.json has them"));
  CHECK_THROWS_WITH(read_clip_file(path, {.heads = {{2, 2}}}), Contains(why));
}

TEST_CASE("a CLIP of another network is named by the tensor that only it has") {
  const auto with = [](const std::string& file, const char* name) {
    StateDict tensors = tensors_of(file);
    tensors.emplace_back(name, at::ones({2}));
    return refusal(tensors);
  };
  CHECK_THAT(with(kHuggingFace, "vision_model.embeddings.patch_embedding.bias"),
             Contains("the tensor 'vision_model.embeddings.patch_embedding.bias' is of SigLIP") &&
                 Contains("only OpenAI's networks are supported"));
  const std::pair<const char*, const char*> others[] = {
      {"logit_bias", "'logit_bias' is of the sigmoid loss of SigLIP"},
      {"visual.trunk.norm.bias", "an image tower of timm"},
      {"text.transformer.embeddings.LayerNorm.weight", "a text tower of Hugging Face"},
      {"text_decoder.ln_final.bias", "CoCa"},
      {"visual.attn_pool.query", "an attentional pooler"},
      {"cls_emb", "a class token of texts"},
      {"transformer.resblocks.0.ls_1.gamma", "scaled layers"},
      {"text_projection.bias", "a text projection with a bias"}};
  for (const auto& [name, what] : others) CHECK_THAT(with(kOpenClip, name), Contains(what));
}

TEST_CASE("a part of a divided model is refused, and the others are named") {
  const TempDir folder;
  const std::string path = folder / "model-00001-of-00002.safetensors";
  put_file(path, "");
  put_file(folder / "model-00002-of-00002.safetensors", "");
  CHECK_THAT(test::message_of<DataError>([&] { read_clip_file(path); }),
             Contains("expected a whole CLIP, got a part: model-00001-of-00002.safetensors") &&
                 Contains("model-00002-of-00002.safetensors") && Contains("max_shard_size"));
  const std::string index = folder / "model.safetensors.index.json";
  put_file(index, "{}");
  CHECK_THROWS_WITH(read_clip_file(index),
                    Contains("got an index of parts: model-00001-of-00002.safetensors") &&
                        Contains("model-00002-of-00002.safetensors"));
}

TEST_CASE("side, epsilon and end token of Hugging Face's CLIP come from its config.json") {
  const ClipNetworkConfig shape =
      clip_shape_of(open_clip_names(tensors_of(kHuggingFace), "t").tensors, "t");
  const auto apply = [&](const std::string& vision, const std::string& text) {
    ClipNetworkConfig config = shape;
    apply_hugging_face_config(
        Json::parse(R"({"vision_config": {"num_attention_heads": 3)" + vision +
                    R"(}, "text_config": {"num_attention_heads": 2)" + text + "}}"),
        "config.json",
        config);
    return config;
  };
  const std::string side = R"(, "image_size": 14)", token = R"(, "eos_token_id": 2)";
  const ClipNetworkConfig config =
      apply(side + R"(, "layer_norm_eps": 1e-3)", token + R"(, "layer_norm_eps": 1e-4)");
  CHECK(config.vision_cfg.image_size == 14);
  CHECK(config.vision_cfg.norm_kwargs.eps == 1e-3);
  CHECK(config.text_cfg.norm_kwargs.eps == 1e-4);
  CHECK_THROWS_WITH(apply(R"(, "image_size": 16)", token),
                    Contains("/vision_config/image_size: expected 12 to 15, 3 patches of 4 pixels "
                             "as the weights have, got 16"));
  CHECK_THROWS_WITH(apply("", token), Contains("/vision_config/image_size") && Contains("got 224"));
  CHECK_THROWS_WITH(apply(side, R"(, "eos_token_id": 7)"),
                    Contains("/text_config/eos_token_id: expected 513, the last of the vocabulary, "
                             "got 7"));
  CHECK_THROWS_WITH(apply(side + R"(, "layer_norm_eps": "x")", token),
                    Contains("/vision_config/layer_norm_eps: expected a number, got \"x\""));
  // What old files have beside a section counts instead of it.
  ClipNetworkConfig old = shape;
  apply_hugging_face_config(
      Json::parse(R"({"vision_config": {"num_attention_heads": 3, "image_size": 12},
                      "text_config": {"num_attention_heads": 5}, "vision_config_dict": null,
                      "text_config_dict": {"num_attention_heads": 2, "eos_token_id": 2}})"),
      "config.json",
      old);
  CHECK(old.text_cfg.heads == 2);
}

// Files of CLIPs of x-clip: which arguments they need, and what becomes of those that do not fit.
std::string x_clip_file() {
  return fixture_folder("x_clip") + "/file/x_clip.pt";
}

XClipFile read_x_clip(const std::string& path, const std::optional<XClipConfig>& config = {}) {
  return as_x_clip_file(read_raw_clip(path), path, {.arguments = config});
}

TEST_CASE("a state dict of x-clip is known by its names, and others are not") {
  CHECK(is_x_clip(read_raw_clip(x_clip_file()).tensors));
  const std::string other = fixture_folder("clip_files") + "/open_clip/open_clip_model.safetensors";
  CHECK_FALSE(is_x_clip(read_raw_clip(other).tensors));
  CHECK_THROWS_WITH(
      read_clip_file(x_clip_file()),
      Contains(
          "x_clip.pt: a CLIP of x-clip: expected a CLIP of OpenAI, open_clip or Hugging Face"));
}

TEST_CASE("a CLIP of x-clip comes with the arguments beside it, without what only training needs") {
  const CapturedLog log;
  const XClipFile file = read_x_clip(x_clip_file());
  CHECK(file.config.dim_image == 8);
  CHECK(file.config.text_rotary_pos_emb);
  CHECK(file.config.token_rows() == file.config.num_text_tokens + 1);
  CHECK(file.merges.has_value());
  const Fixture expected = load_fixture(fixture_folder("x_clip") + "/file/expected.safetensors");
  CHECK(names_of(file.weights) == expected.json.at("names").get<std::vector<std::string>>());
  CHECK(log.count("tensors of mlm.* or visual_ssl.* are left out") == 1);
}

TEST_CASE("without arguments a CLIP of x-clip is refused with what to do") {
  const TempDir dir;
  const std::string path = dir / "clip.pt";
  write_file_atomically(path, read_file(x_clip_file()));
  CHECK_THAT(test::message_of<ConfigError>([&] { read_x_clip(path); }),
             Contains("clip.pt: a CLIP of x-clip, whose weights do not say all") &&
                 Contains("into x_clip_config.json beside the file") &&
                 Contains("\"base_model_kwargs\", with \"make\": \"x-clip\""));
  write_file_atomically(dir / kXClipConfigName, R"({"text_width": 4, "visual_patch_size": 3})");
  CHECK_THAT(test::message_of<DataError>([&] { read_x_clip(path); }),
             Contains("x_clip_config.json: no CLIP that can be built") &&
                 Contains("/text_width: no such key; known are: dim_text"));
  // Arguments in a file of another name, which a command line gives.
  write_file_atomically(dir / "own.json",
                        read_file(fixture_folder("x_clip") + "/file/" + kXClipConfigName));
  CHECK(as_x_clip_file(read_raw_clip(path), path, {.config_path = dir / "own.json"})
            .config.dim_image == 8);
  write_file_atomically(dir / kXClipConfigName, "{");
  CHECK_THROWS_WITH(read_x_clip(path), Contains("x_clip_config.json"));
}

}  // namespace
}  // namespace dalle2::test
