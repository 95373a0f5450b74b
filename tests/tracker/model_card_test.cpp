// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

std::string card(const std::string& config, const std::string& revision = "main") {
  HuggingfaceSaveConfig saver;
  saver.huggingface_repo = "owner/mine";
  saver.revision = revision;
  return model_card(saver, "latest.pth", config);
}

TEST_CASE("a model card says what it is, how to draw from it and how it was trained") {
  constexpr const char* kDecoder = R"({"decoder": {"unets": [{"dim": 8}]}, "train": {}})";
  CHECK_THAT(
      card(kDecoder),
      Catch::StartsWith("---\nlibrary_name: dalle2-train\ntags:\n- dalle2\n- decoder\n---\n\n"
                        "# mine\n") &&
          Catch::Contains("```sh\ndalle2-train sample --checkpoint hf://owner/mine/latest.pth "
                          "--image-embeds image_embeds.npy --out samples\n```") &&
          Catch::Contains(std::string("## Config\n\n```json\n") + kDecoder + "\n```\n"));
  CHECK_THAT(card(kDecoder, "v1"), Catch::Contains("--checkpoint hf://owner/mine@v1/latest.pth"));
  CHECK_THAT(card(R"({"decoder": {"unconditional": true}})"),
             Catch::Contains("mine/latest.pth --num 16 --out samples\n"));
  CHECK_THAT(card(R"({"prior": {}})"), Catch::Contains("latest.pth --text-embeds text_embeds.npy"));
  CHECK_THAT(card(R"({"vae": {}})"), !Catch::Contains("dalle2-train sample"));
}

TEST_CASE("a config of a model card cannot become markup of the page") {
  CHECK_THAT(card(R"({"decoder": {"note": "```\n# no heading"}})"),
             Catch::Contains("\n````json\n"));
}

}  // namespace
}  // namespace dalle2
