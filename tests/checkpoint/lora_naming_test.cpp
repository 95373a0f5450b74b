// SPDX-License-Identifier: MIT
#include "checkpoint/lora/lora_naming.h"

#include <torch/types.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint_test_tools.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

using test::names_of;

StateDict numbered(const nlohmann::json& keys) {
  StateDict tensors;
  for (size_t i = 0; i < keys.size(); ++i) {
    tensors.emplace_back(keys[i].get<std::string>(),
                         at::scalar_tensor(static_cast<int64_t>(i), at::kLong));
  }
  return tensors;
}

StateDict named(const std::vector<std::string>& keys) {
  return numbered(nlohmann::json(keys));
}

/// What diffusers made of the names: a dict of places, or the text of its error.
template <class Conversion>
void expect_as_upstream(const nlohmann::json& expected, const Conversion& conversion) {
  if (expected.is_string()) {
    CHECK_THROWS_AS(conversion(), DataError);
    CHECK_THROWS_WITH(conversion(), Catch::StartsWith(expected.get<std::string>()));
    return;
  }
  nlohmann::json actual = nlohmann::json::object();
  for (const auto& [name, tensor] : conversion()) actual[name] = tensor.template item<int64_t>();
  CHECK(actual == expected);
}

TEST_CASE("names of adapters are converted as diffusers converts them") {
  const auto cases = test::load_fixture("lora/names").json;
  REQUIRE(cases.size() > 50);
  for (const auto& one : cases) {
    INFO(one.at("keys").dump());
    const StateDict tensors = numbered(one.at("keys"));
    expect_as_upstream(one.at("diffusers"), [&] { return with_lora_naming(tensors, "diffusers"); });
    expect_as_upstream(one.at("peft"), [&] { return with_lora_naming(tensors, "peft"); });
    expect_as_upstream(one.at("unet-peft"), [&] { return with_lora_naming(tensors, "unet-peft"); });
    expect_as_upstream(one.at("text_encoder"), [&] {
      return test::text_encoder_lora(tensors, one.at("prefix").get<std::string>());
    });
  }
}

TEST_CASE("names of a text encoder come back from every naming") {
  const std::vector<std::string> names = {
      "text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.down.weight",
      "text_model.encoder.layers.0.self_attn.q_proj.lora_linear_layer.up.weight",
      "text_model.encoder.layers.11.self_attn.out_proj.lora_linear_layer.up.weight",
      "text_model.encoder.layers.11.self_attn.v_proj.lora_linear_layer.down.weight",
      "text_model.encoder.layers.11.self_attn.k_proj.lora_linear_layer.down.weight"};
  const StateDict diffusers = named(names);
  for (const char* naming : {"peft", "old"}) {
    const StateDict there = with_lora_naming(diffusers, naming);
    CHECK(names_of(there) != names);
    CHECK(names_of(with_lora_naming(there, "diffusers")) == names);
  }
  CHECK(names_of(with_lora_naming(with_lora_naming(diffusers, "peft"), "old")) ==
        names_of(with_lora_naming(diffusers, "old")));
  CHECK(names_of(with_lora_naming(with_lora_naming(diffusers, "old"), "peft")) ==
        names_of(with_lora_naming(diffusers, "peft")));
}

TEST_CASE("names of our unets come back from PEFT's and from the old ones") {
  const std::vector<std::string> names = {"unets.0.mid_attn.fn.fn.to_q.lora.down.weight",
                                          "unets.0.mid_attn.fn.fn.to_q.lora.up.weight",
                                          "unets.0.mid_attn.fn.fn.to_kv.lora.down.weight",
                                          "unets.1.downs.0.1.cross_attn.to_out.0.lora.up.weight",
                                          "unets.1.downs.0.3.fn.to_qkv.lora.up.weight"};
  const StateDict ours = named(names);
  const StateDict peft = with_lora_naming(ours, "unet-peft");
  CHECK(names_of(peft)[0] == "unets.0.mid_attn.fn.fn.to_q.lora_A.weight");
  CHECK(names_of(peft)[2] == "unets.0.mid_attn.fn.fn.to_kv.lora_A.weight");
  CHECK(names_of(with_lora_naming(peft, "unet")) == names);
  const StateDict old = with_lora_naming(ours, "old");
  CHECK(names_of(old)[3] == "unets.1.downs.0.1.cross_attn.to_out_lora.up.weight");
  CHECK(names_of(old)[2] == names[2]);  // there is no old name of it
  CHECK(names_of(with_lora_naming(old, "unet")) == names);
}

TEST_CASE("an unknown naming and names of no known kind are refused by name") {
  CHECK_THROWS_WITH(with_lora_naming({}, "kohya"),
                    "--lora-naming kohya: expected one of diffusers, peft, old, unet, unet-peft");
  CHECK_THROWS_WITH(with_lora_naming(named({"conv.weight"}), "peft"),
                    "Could not automatically infer state dict type: no name holds to_out_lora "
                    "(old), .lora_A.weight (PEFT) or lora_linear_layer (diffusers); the first is "
                    "'conv.weight'");
}

}  // namespace
}  // namespace dalle2
