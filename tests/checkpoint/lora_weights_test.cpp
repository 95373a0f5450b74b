// SPDX-License-Identifier: MIT

#include <torch/torch.h>
#include <cstring>

#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint_test_tools.h"
#include "support/fixture.h"
#include "support/message_of.h"

namespace dalle2 {
namespace {

using test::message_of;
using test::wave;

/// Two unets' worth of a decoder.
StateDict base_weights() {
  return {{"unets.0.a.to_q.weight", wave({5, 4})},
          {"unets.0.a.to_q.bias", wave({5})},
          {"unets.0.conv.to_qkv.weight", wave({6, 4, 1, 1}, 0.2)},
          {"unets.1.a.to_q.weight", wave({5, 4}, 0.9)},
          {"noise_schedulers.0.betas", wave({3})}};
}

LoraFile adapter_file() {
  return {{{"unets.0.a.to_q.lora.down.weight", wave({2, 4}, 0.5)},
           {"unets.0.a.to_q.lora.up.weight", wave({5, 2}, 0.6)},
           {"unets.0.conv.to_qkv.lora.down.weight", wave({2, 4, 1, 1}, 0.7)},
           {"unets.0.conv.to_qkv.lora.up.weight", wave({6, 2, 1, 1}, 0.8)}},
          {.rank = 2, .alpha = 3, .targets = {"to_q", "to_qkv"}}};
}

Value checkpoint_of(const StateDict& weights) {
  return test::dict_of({{"model", to_dict(weights)}, {"version", "1.15.6"}});
}

at::Tensor expected_to_q() {
  return wave({5, 4}) + 1.5 * at::matmul(wave({5, 2}, 0.6), wave({2, 4}, 0.5));
}

TEST_CASE("the strength of an adapter is its own entry, else the given one, else its rank") {
  const StateDict tensors = {{"a.lora.down.weight", wave({2, 4})},
                             {"a.lora.up.weight", wave({3, 2})},
                             {"b.lora.down.weight", wave({2, 4})},
                             {"b.lora.up.weight", wave({3, 2})},
                             {"b.alpha", at::scalar_tensor(5.0)},
                             {"a.bias", wave({3})}};
  const LoraAdapters own = lora_adapters(tensors, std::nullopt, "x");
  CHECK(own.layers[0].second.alpha == 2);
  CHECK(own.layers[1].second.alpha == 5);
  REQUIRE(own.others.size() == 1);
  CHECK(own.others[0].first == "a.bias");
  CHECK(lora_adapters(tensors, 7.0, "x").layers[0].second.alpha == 7);
  CHECK(lora_adapters(tensors, 7.0, "x").layers[1].second.alpha == 5);
}

TEST_CASE("half an adapter, another rank, and adapters of another network are named") {
  CHECK(message_of([] {
          lora_adapters({{"a.lora.up.weight", wave({3, 2})}}, {}, "f");
        }) == "f: the adapter of 'a' has no 'down'");
  CHECK(message_of([] {
          lora_adapters(
              {{"a.lora.up.weight", wave({3, 2})}, {"a.lora.down.weight", wave({4, 4})}}, {}, "f");
        }) == "f: the adapter of 'a': 'down' [rank, in] is [4, 4], 'up' [out, rank] is [3, 2]");
  LoraFile other = adapter_file();
  other.tensors[0].second = wave({2, 7});
  other.tensors.emplace_back("unets.2.b.lora.down.weight", wave({2, 4}));
  other.tensors.emplace_back("unets.2.b.lora.up.weight", wave({4, 2}));
  CHECK(message_of(
            [&] { merged_lora(base_weights(), lora_adapters(other.tensors, 3.0, "f"), "f"); }) ==
        "f: the adapters belong to another network:\n"
        "    unets.0.a.to_q: a weight [5, 4] for an adapter of 'down' [2, 7] and 'up' [5, 2]\n"
        "    unets.2.b: not there");
}

TEST_CASE("a file of adapters holds their strength and comes back") {
  const test::TempDir folder;
  const std::string path = folder / "lora.safetensors";
  write_lora_file(path, adapter_file());
  const auto metadata = read_safetensors(path).metadata;
  CHECK(metadata.at("format") == "pt");
  CHECK(metadata.at("rank") == "2");
  CHECK(metadata.at("alpha") == "3.0");
  CHECK(metadata.at("targets") == R"(["to_q","to_qkv"])");
  const auto upstream = nlohmann::json::parse(metadata.at("lora_adapter_metadata"));
  CHECK(upstream.at("unets.0.r") == 2);
  CHECK(upstream.at("unets.0.lora_alpha") == 3.0);
  const LoraAdapters adapters = read_lora_file(path);
  REQUIRE(adapters.layers.size() == 2);
  CHECK(adapters.layers[1].first == "unets.0.conv.to_qkv");
  CHECK(adapters.layers[1].second.alpha == 3);
  CHECK(at::equal(adapters.layers[1].second.up, wave({6, 2, 1, 1}, 0.8)));
}

TEST_CASE("a file of adapters is merged into a checkpoint, with our names or diffusers'") {
  const test::TempDir folder;
  write_pth(folder / "base.pth", checkpoint_of(base_weights()));
  write_lora_file(folder / "lora.safetensors", adapter_file());
  const auto check = [&](const std::string& lora) {
    convert_checkpoint(
        folder / "base.pth", folder / "out.pth", Weights::kAll, LoraChoice{.files = {lora}});
    const Value merged = read_pth(folder / "out.pth");
    const StateDict weights = Cursor(merged).at("model").as_state_dict();
    CHECK(weights.size() == base_weights().size());
    test::expect_close(weights[0].second, expected_to_q(), 1e-6, "to_q");
    const at::Tensor to_qkv =
        wave({6, 4}, 0.2) + 1.5 * at::matmul(wave({6, 2}, 0.8), wave({2, 4}, 0.7));
    test::expect_close(weights[2].second, to_qkv.view({6, 4, 1, 1}), 1e-6, "to_qkv");
    CHECK(at::equal(weights[3].second, wave({5, 4}, 0.9)));
  };
  check(folder / "lora.safetensors");
  SafetensorsFile diffusers = read_safetensors(folder / "lora.safetensors");
  for (auto& [name, tensor] : diffusers.tensors) name.replace(0, std::strlen("unets.0."), "unet.");
  write_safetensors(folder / "diffusers.safetensors", diffusers.tensors, diffusers.metadata);
  check(folder / "diffusers.safetensors");
}

TEST_CASE("a checkpoint that holds adapters becomes plain weights") {
  const test::TempDir folder;
  StateDict weights = base_weights();
  for (const auto& entry : adapter_file().tensors) weights.push_back(entry);
  weights[1].second = weights[1].second.to(at::kBFloat16);
  Value checkpoint = checkpoint_of(weights);
  checkpoint.as_dict().set("lora", to_dict(adapter_file().info));
  write_pth(folder / "run.pth", checkpoint);
  write_lora_file(folder / "lora.safetensors", adapter_file());
  CHECK_THROWS_WITH(convert_checkpoint(folder / "run.pth",
                                       folder / "x.pth",
                                       Weights::kAll,
                                       LoraChoice{.files = {folder / "lora.safetensors"}}),
                    Catch::Contains("has its own adapters"));
  convert_checkpoint(folder / "run.pth", folder / "out.safetensors", Weights::kAll, LoraChoice{});
  const Value merged = read_checkpoint(folder / "out.safetensors");
  CHECK_FALSE(has_lora(Cursor(merged)));
  CHECK_FALSE(Cursor(merged).has("lora"));
  const StateDict plain = Cursor(merged).at("model").as_state_dict();
  CHECK(plain.size() == base_weights().size());
  test::expect_close(plain[0].second, expected_to_q(), 1e-6, "to_q");
  CHECK(plain[1].second.scalar_type() == at::kFloat);
  CHECK_THROWS_WITH(
      convert_checkpoint(folder / "out.safetensors", folder / "x.pth", Weights::kAll, LoraChoice{}),
      Catch::EndsWith("/model: no adapters: expected a checkpoint of a run with /train/lora"));
}

TEST_CASE("a scale makes adapters stronger, and files come one after the other") {
  const test::TempDir folder;
  LoraFile file = adapter_file();
  file.tensors.emplace_back("unets.0.a.to_q.bias", wave({5}, 0.4));
  write_lora_file(folder / "lora.safetensors", file);
  const StateDict weights = base_weights();
  const Value checkpoint = checkpoint_of(weights);
  const auto with = [&](const LoraChoice& choice) {
    return with_adapters(weights, Cursor(checkpoint, "base.pth"), choice);
  };
  const std::string path = folder / "lora.safetensors";
  const at::Tensor whole = expected_to_q() - weights[0].second;  // what the adapter adds
  const StateDict half = with({.files = {path}, .scales = {0.5}});
  test::expect_close(half[0].second, weights[0].second + 0.5 * whole, 1e-6, "half of it");
  test::expect_close(*find_tensor(half, "unets.0.a.to_q.bias"),
                     0.5 * (wave({5}) + wave({5}, 0.4)),
                     1e-6,
                     "a trained bias, half of the way");
  const StateDict both = with({.files = {path, path}, .scales = {1.0, -0.25}});
  test::expect_close(both[0].second, weights[0].second + 0.75 * whole, 1e-6, "one less the other");
  CHECK(at::equal(with({.files = {path}, .scales = {0.0}})[0].second, weights[0].second));
  CHECK(at::equal(*find_tensor(with({.files = {path}}), "unets.0.a.to_q.bias"), wave({5}, 0.4)));
  CHECK_THROWS_WITH(with({.files = {path}, .scales = {1.0, 2.0}}),
                    "--lora-scale: expected one number, got 2");
  CHECK_THROWS_WITH(
      with({.files = {path, path, path}, .scales = {1.0, 2.0}}),
      "--lora-scale: expected one number, or one for each of the 3 --lora files, got 2");
  CHECK_THROWS_WITH(with({.files = {}, .scales = {1.0}}),
                    Catch::StartsWith("--lora-scale: has no effect: base.pth holds no adapters"));
  CHECK_THROWS_WITH(with({.files = {path}, .scales = {NAN}}),
                    "--lora-scale: expected a number, got nan");
}

TEST_CASE("files that hold no adapters are refused") {
  const test::TempDir folder;
  write_safetensors(folder / "base.safetensors", base_weights());
  CHECK_THROWS_WITH(read_lora_file(folder / "base.safetensors"),
                    Catch::Contains("no adapters: expected names like"));
  write_safetensors(folder / "peft.safetensors", {{"unet.a.to_q.lora_A.weight", wave({2, 4})}});
  CHECK_THAT(test::message_of<DataError>([&] { read_lora_file(folder / "peft.safetensors"); }),
             Catch::Contains(
                 "no adapters: expected names like "
                 "unets.0.mid_attn.fn.fn.to_q.lora.down.weight, as this program writes them, or "
                 "unet.LAYER.lora.down.weight, as diffusers does; got "
                 "unet.a.to_q.lora_A.weight"));
  write_safetensors(folder / "odd.safetensors", adapter_file().tensors, {{"alpha", "big"}});
  CHECK_THROWS_WITH(read_lora_file(folder / "odd.safetensors"),
                    Catch::EndsWith("metadata \"alpha\": expected a number, got 'big'"));
}

}  // namespace
}  // namespace dalle2
