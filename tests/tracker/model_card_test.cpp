// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

constexpr const char* kDecoder = R"({"decoder": {"unets": [{"dim": 8}]}, "train": {}})";

TEST_CASE("a model card says what it is, how to draw from it and how it was trained") {
  const CardFacts facts{.repo = "owner/my-decoder",
                        .file = "latest.pth",
                        .config = kDecoder,
                        .pictures = {{"out/images/110_Test_Samples_0.png", "a red circle"}}};
  const std::string card = model_card(facts);
  CHECK(
      card.starts_with("---\nlibrary_name: dalle2-train\ntags:\n- dalle2\n- decoder\n---\n\n"
                       "# my-decoder\n"));
  CHECK_THAT(
      card,
      Catch::Contains("```sh\ndalle2-train sample --checkpoint hf://owner/my-decoder/latest.pth "
                      "--image-embeds image_embeds.npy --out samples\n```"));
  CHECK_THAT(card,
             Catch::Contains(R"("load": {"load_from": "huggingface", "huggingface_repo": )"
                             R"("owner/my-decoder", "huggingface_file_path": "latest.pth"})"));
  CHECK_THAT(
      card,
      Catch::Contains("<img src=\"samples/110_Test_Samples_0.png\" alt=\"\"><br>a red circle"));
  CHECK_THAT(card, Catch::Contains(std::string("## Config\n\n```json\n") + kDecoder + "\n```\n"));
}

TEST_CASE("an unconditional decoder is drawn from without embeddings, a prior by text embeddings") {
  CardFacts facts{.repo = "o/r", .file = "l.pth", .config = {}};
  facts.config = R"({"decoder": {"unconditional": true}})";
  CHECK_THAT(model_card(facts),
             Catch::Contains("sample --checkpoint hf://o/r/l.pth --num 16 --out samples\n"));
  facts.config = R"({"prior": {}})";
  CHECK_THAT(model_card(facts),
             Catch::Contains("sample --checkpoint hf://o/r/l.pth --text-embeds text_embeds.npy"));
  facts.config = R"({"vae": {}})";
  CHECK_THAT(model_card(facts), !Catch::Contains("dalle2-train sample"));
}

TEST_CASE("a card names the branch, and tells how to continue only where the file can") {
  CardFacts facts{.repo = "o/r", .file = "l.pth", .revision = "v1", .config = R"({"decoder": {}})"};
  CHECK_THAT(model_card(facts), Catch::Contains("--checkpoint hf://o/r@v1/l.pth"));
  CHECK_THAT(model_card(facts), Catch::Contains("\"revision\": \"v1\""));
  facts.save_type = SaveType::model;
  CHECK_THAT(model_card(facts), !Catch::Contains("To train it further"));
  CHECK_THAT(model_card(facts), Catch::Contains("--checkpoint hf://o/r@v1/l.pth"));
}

TEST_CASE("captions and configs of a model card cannot become markup of the page") {
  const CardFacts facts{.repo = "o/r",
                        .file = "",
                        .config = R"({"decoder": {"note": "```\n# no heading"}})",
                        .pictures = {{"out/images/a.png", "<script>alert(1)</script>"}}};
  const std::string card = model_card(facts);
  CHECK_THAT(card, !Catch::Contains("<script>"));
  CHECK_THAT(card, Catch::Contains("&lt;script&gt;"));
  CHECK_THAT(card, Catch::Contains("\n````json\n"));
  CHECK_THAT(card, Catch::Contains("hf://o/r/FILE"));  // each save has another name
}

}  // namespace
}  // namespace dalle2
