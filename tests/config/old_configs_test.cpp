// SPDX-License-Identifier: MIT
#include "config/shared/old_configs.h"

#include <catch2/catch.hpp>

#include "config/decoder/decoder_run_config.h"
#include "config/minimal_config.h"

namespace dalle2 {
namespace {

using Catch::Matchers::Contains;

/// A decoder's config of a version with two unets, as it is completed.
Json completed_decoder(const char* version, const Json& more = Json::object()) {
  Json root = {{"written_by", version}, {"decoder", {{"unets", {Json::object(), Json::object()}}}}};
  root.update(more);
  complete_old_config(root, "decoder");
  return root;
}

TEST_CASE("keys that a config leaves out have the defaults of its version") {
  const Json first = completed_decoder("0.14.0")["decoder"];
  CHECK(first["blur_sigma"] == Json::array({0.1, 0.2}));
  CHECK(first["unets"][1]["final_conv_kernel_size"] == 3);
  CHECK(first["unets"][1]["pixel_shuffle_upsample"] == false);
  const Json old = completed_decoder("0.19.6")["decoder"];
  CHECK(old["dynamic_thres_percentile"] == 0.9);
  CHECK(old["ddim_sampling_eta"] == 1.0);
  CHECK(old["blur_prob"] == 1.0);
  CHECK(old["beta_schedule"] == Json::array({"cosine", "cosine"}));
  CHECK(completed_decoder("1.12.0")["decoder"] == completed_decoder("1.15.6")["decoder"]);
}

TEST_CASE("keys that only old trainers read are taken out") {
  const Json root =
      completed_decoder("0.15.1",
                        {{"load", {{"source", "local"}}},
                         {"train", {{"save_all", true}, {"lr", 1e-3}}},
                         {"tracker", {{"tracker_type", "console"}, {"data_path", "a"}}}});
  CHECK_FALSE(root.contains("load"));
  CHECK(root["train"] == Json{{"lr", 1e-3}});
  CHECK_FALSE(root["tracker"].contains("tracker_type"));
  CHECK(root["tracker"]["log"]["log_type"] == "console");
}

TEST_CASE("a written_by that is no known version is refused") {
  CHECK_THROWS_WITH(completed_decoder("0.13.0"),
                    Contains("/written_by: expected dalle2-pytorch 0.14.0 to 1.15.6, got 0.13.0"));
}

}  // namespace
}  // namespace dalle2
