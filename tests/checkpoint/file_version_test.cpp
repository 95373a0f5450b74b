// SPDX-License-Identifier: MIT
#include "checkpoint/file_version.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

StateDict named(const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) {
  StateDict weights;
  for (const auto& [name, shape] : shapes) weights.emplace_back(name, at::zeros(shape));
  return weights;
}

std::string range_of(const StateDict& weights, const char* kind) {
  return to_text(versions_of_tensors(weights, kind, "a.pth"));
}

const StateDict kOfMany = named({{"unets.0.mid_block1.cross_attn.fn.null_kv", {2, 64}},
                                 {"unets.0.downs.0.4.weight", {8, 8, 4, 4}},
                                 {"unets.0.ups.0.3.net.0.weight", {8, 8, 1, 1}}});

Version version_of(const StateDict& weights,
                   const char* said,
                   const std::string& told,
                   const char* kind = "decoder") {
  Dict file;
  file.set("model", to_dict(weights));
  if (said != nullptr) file.set("version", said);
  const Value root = file;
  return version_of_file(Cursor(root, "a.pth"), weights, kind, {told});
}

TEST_CASE("tensors of a unet tell the versions that have such layers") {
  const std::string gamma = "unets.0.mid_attn.fn.fn.norm.gamma";
  CHECK(range_of(named({{gamma, {8}},
                        {"unets.0.downs.0.3.0.block1.project.weight", {8, 8, 3, 3}},
                        {"unets.0.ups.0.3.1.weight", {8, 8, 3, 3}},
                        {"unets.0.to_out.weight", {3, 8, 3, 3}}}),
                 "decoder") == "0.14.0 to 0.14.1");
  CHECK(range_of(named({{gamma, {8}},
                        {"unets.0.downs.0.3.0.block1.project.weight", {8, 8, 3, 3}},
                        {"unets.0.ups.0.3.weight", {8, 8, 4, 4}}}),
                 "decoder") == "0.15.0 to 0.15.2");
  CHECK(range_of(named({{gamma, {8}}, {"unets.0.downs.0.2.0.block1.project.weight", {8, 8, 3, 3}}}),
                 "decoder") == "0.15.3 to 0.15.4");
  CHECK(range_of(named({{"unets.0.ups.0.3.weight", {8, 8, 4, 4}}}), "decoder") ==
        "0.16.0 to 0.20.1");
  CHECK(range_of(kOfMany, "decoder") == "0.21.0 to 1.9.0");
  CHECK(range_of(named({{"unets.0.mid_block1.cross_attn.fn.null_kv", {2, 64}},
                        {"unets.0.downs.0.4.1.weight", {8, 32, 1, 1}}}),
                 "decoder") == "1.10.0 to 1.12.4");
  CHECK(range_of(named({{"unets.0.mid_block1.cross_attn.null_kv", {2, 64}}}), "decoder") ==
        "1.14.0 to 1.15.6");
}

TEST_CASE("an upper unet's last convolution tells whether it sees the low-resolution picture") {
  const auto upper = [](int64_t in) {
    StateDict weights = kOfMany;
    weights.emplace_back("unets.1.final_resnet_block.block2.project.weight",
                         at::zeros({8, 8, 3, 3}));
    weights.emplace_back("unets.1.to_out.weight", at::zeros({3, in, 1, 1}));
    return range_of(weights, "decoder");
  };
  CHECK(upper(8) == "0.21.0 to 0.23.10");
  CHECK(upper(11) == "0.24.0 to 1.9.0");
}

TEST_CASE("tensors of a prior tell the versions that have such layers") {
  CHECK(range_of(named({{"net.causal_transformer.norm.gamma", {8}}}), "prior") ==
        "0.14.0 to 0.15.4");
  CHECK(range_of(named({{"net.learned_query", {8}}}), "prior") == "0.16.0 to 0.22.3");
  CHECK(range_of(named({{"net.null_text_embed", {1, 4, 8}}}), "prior") == "0.23.0 to 1.8.4");
  CHECK(range_of(named({{"net.null_text_encodings", {1, 4, 8}}}), "prior") == "1.9.0 to 1.15.6");
}

TEST_CASE("a file's version is the one it says, else the one its tensors or the user say") {
  CHECK(version_of(kOfMany, "1.0.2", "") == Version{1, 0, 2});
  CHECK(version_of(kOfMany, nullptr, "1.1.0") == Version{1, 1, 0});
  const StateDict prior =
      named({{"net.null_text_encodings", {1, 4, 8}}, {"net.to_time_embeds.0.weight", {10, 8}}});
  CHECK(version_of(prior, nullptr, "", "prior") == kLastVersion);
}

TEST_CASE("a version that is not known, or contradicts the tensors or the file, is refused") {
  CHECK_THROWS_WITH(
      version_of(kOfMany, nullptr, ""),
      Contains("a.pth: does not say which version of dalle2-pytorch wrote it, and its "
               "tensors are those of 0.21.0 to 1.9.0") &&
          Contains("Name the version: --written-by 1.1.0"));
  CHECK_THROWS_WITH(version_of(kOfMany, "1.0.2", "1.1.0"),
                    Contains("--written-by 1.1.0: the file a.pth says that dalle2-pytorch 1.0.2"));
  CHECK_THROWS_WITH(
      version_of(kOfMany, nullptr, "1.12.0"),
      Contains("--written-by names dalle2-pytorch 1.12.0, but its tensors are those of "
               "0.21.0 to 1.9.0"));
  CHECK_THROWS_WITH(version_of(kOfMany, nullptr, "1.x"),
                    Contains("--written-by: expected a version of dalle2-pytorch such as 1.1.0"));
  CHECK_THROWS_WITH(version_of(kOfMany, nullptr, "0.12.3"),
                    Contains("expected dalle2-pytorch 0.14.0 to 1.15.6, got 0.12.3"));
  CHECK_THROWS_WITH(version_of(named({{"unets.0.final_conv.0.weight", {1}}}), nullptr, ""),
                    Contains("was written by dalle2-pytorch before 0.14.0"));
}

}  // namespace
}  // namespace dalle2
