// SPDX-License-Identifier: MIT
// Files of CoCas: which arguments they need, and what becomes of those that do not fit.
#include "checkpoint/clip/coca_file.h"

#include <torch/types.h>

#include "base/error.h"
#include "checkpoint/clip/clip_file.h"
#include "io/files/atomic_file.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

std::string coca_file(const std::string& name = "coca.pt") {
  return fixture_folder("coca") + "/file/" + name;
}

CocaFile read_coca(const std::string& path, const std::optional<CocaConfig>& config = {}) {
  return as_coca_file(read_raw_clip(path), path, config);
}

TEST_CASE("a state dict of a CoCa is known by its names, and is no CLIP of OpenAI") {
  CHECK(maker_of(read_raw_clip(coca_file()).tensors) == &kCoca);
  CHECK_THROWS_WITH(read_clip_file(coca_file()),
                    Contains("coca.pt: a CoCa of coca-pytorch: expected a CLIP of OpenAI"));
}

TEST_CASE("a CoCa comes with the arguments beside it, and with all its tensors") {
  const CocaFile file = read_coca(coca_file());
  CHECK(file.config.dim == 6);
  CHECK(file.config.heads == 2);
  REQUIRE(file.config.img_encoder.has_value());
  CHECK(file.config.img_encoder->mlp_dim == 8);
  CHECK(file.merges.has_value());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : file.weights) names.push_back(name);
  const Fixture expected = load_fixture(coca_file("expected.safetensors"));
  CHECK(names == expected.json.at("names").get<std::vector<std::string>>());
}

TEST_CASE("one name of a CoCa's table of tokens suffices, and two tables are refused") {
  const CocaFile whole = read_coca(coca_file());
  const at::Tensor table = *find_tensor(whole.weights, "token_emb.weight");
  // safetensors' save_model() keeps to_logits.1.weight.
  CHECK(find_tensor(read_raw_clip(coca_file("coca.safetensors")).tensors, "token_emb.weight") ==
        nullptr);
  const CocaFile kept = read_coca(coca_file("coca.safetensors"));
  CHECK(find_tensor(kept.weights, "token_emb.weight")->equal(table));
  RawClip raw = read_raw_clip(coca_file());
  std::erase_if(raw.tensors, [](const auto& item) { return item.first == "to_logits.1.weight"; });
  CHECK(find_tensor(as_coca_file(raw, "c.pt", whole.config).weights, "to_logits.1.weight")
            ->equal(table));
  raw.tensors.emplace_back("to_logits.1.weight", table.to(at::kHalf));
  CHECK_THROWS_AS(as_coca_file(raw, "c.pt", whole.config), DataError);
  raw.tensors.back().second = table + 1;
  CHECK_THROWS_AS(as_coca_file(raw, "c.pt", whole.config), DataError);
  CHECK_THROWS_WITH(as_coca_file(raw, "c.pt", whole.config),
                    Contains("c.pt: token_emb.weight and to_logits.1.weight differ"));
}

TEST_CASE("without arguments, or without those of the image encoder, a CoCa is refused") {
  const TempDir dir;
  const std::string path = dir / "clip.pt";
  write_file_atomically(path, read_file(coca_file()));
  CHECK_THROWS_AS(read_coca(path), ConfigError);
  CHECK_THROWS_WITH(read_coca(path),
                    Contains("clip.pt: a CoCa of coca-pytorch, whose weights do not say all") &&
                        Contains("into coca_config.json beside the file") &&
                        Contains("\"base_model_kwargs\", with \"make\": \"coca\""));
  write_file_atomically(dir / kCoca.config_name,
                        R"({"dim": 6, "num_tokens": 517, "unimodal_depth": 2,
                            "multimodal_depth": 1})");
  CHECK_THROWS_AS(read_coca(path), ConfigError);
  CHECK_THROWS_WITH(read_coca(path),
                    Contains("coca_config.json: img_encoder: required, but missing: without it a "
                             "CoCa embeds no pictures"));
  write_file_atomically(dir / kCoca.config_name, R"({"dim": 6, "width": 4})");
  CHECK_THROWS_AS(read_coca(path), DataError);
  CHECK_THROWS_WITH(read_coca(path),
                    Contains("coca_config.json: no CLIP that can be built") &&
                        Contains("/num_tokens: required, but missing") &&
                        Contains("/width: no such key; known are: dim num_tokens"));
}

TEST_CASE("weights of another CoCa are named with both shapes and the arguments") {
  CocaConfig config = read_coca(coca_file()).config;
  config.dim_latents = 7;
  config.num_img_queries = 4;
  config.dim_head = 2;
  config.ff_mult = 2;
  config.multimodal_depth = 2;
  config.img_encoder->depth = 3;
  config.img_encoder->num_classes = 4;
  config.img_encoder->dim_head = 5;
  config.img_encoder->mlp_dim = 9;
  CHECK_THROWS_AS(read_coca(coca_file(), config), DataError);
  CHECK_THROWS_WITH(
      read_coca(coca_file(), config),
      Contains("coca.pt: these weights are of another CLIP than base_model_kwargs describes") &&
          Contains("text_to_latents.to_latents.weight: expected [7, 6] (by dim_latents, dim), got "
                   "[6, 6]") &&
          Contains("img_queries: expected [5, 6] (by num_img_queries, dim), got [3, 6]") &&
          Contains("img_attn_pool.to_kv.weight: expected [4, 8] (by dim_head, image_dim), got "
                   "[8, 8]") &&
          Contains("unimodal_layers.0.fn.ff_out.1.weight: expected [6, 12] (by dim, ff_mult), got "
                   "[6, 24]") &&
          Contains("multimodal_layers: expected 2 layers (by multimodal_depth), got 1") &&
          Contains("img_encoder.vit.transformer.layers: expected 3 layers (by depth of "
                   "img_encoder), got 1") &&
          Contains("linear_head.weight: expected [4, 8] (by num_classes and dim of img_encoder), "
                   "got [3, 8]") &&
          Contains("to_qkv.weight: expected [30, 8] (by heads, dim_head and dim of img_encoder), "
                   "got [18, 8]") &&
          Contains(
              "net.1.weight: expected [9, 8] (by mlp_dim and dim of img_encoder), got [8, 8]") &&
          Contains("Give there the arguments of coca-pytorch's CoCa(...), of its adapter and of "
                   "its image encoder."));
}

TEST_CASE("a CoCa without an image encoder that we know is named") {
  const CocaConfig config = read_coca(coca_file()).config;
  const auto refused = [&](const RawClip& raw) {
    try {
      as_coca_file(raw, "c.pt", config);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const char* const expected =
      "c.pt: expected tensors of img_encoder.vit.*, a SimpleViT of vit-pytorch 1.4.1 or newer in an "
      "Extractor, got ";
  RawClip raw = read_raw_clip(coca_file());
  for (auto& [name, tensor] : raw.tensors) {  // as in vit-pytorch 1.4.0
    if (name == "img_encoder.vit.linear_head.weight") tensor = tensor[0];
  }
  CHECK_THAT(refused(raw),
             Contains(expected + std::string("another image encoder")) &&
                 Contains("make the embeddings in Python, as .npy files"));
  std::erase_if(raw.tensors,
                [](const auto& item) { return item.first.starts_with("img_encoder."); });
  CHECK_THAT(refused(raw), Contains(expected + std::string("no image encoder")));
}

}  // namespace
}  // namespace dalle2::test
