// SPDX-License-Identifier: MIT
#include "checkpoint/module_state.h"

#include <torch/nn.h>
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "checkpoint/file_version.h"
#include "checkpoint_test_tools.h"
#include "support/captured_log.h"
#include "support/message_of.h"

namespace dalle2 {

namespace {

using Catch::Matchers::Contains;
using test::names_of;

/// Registers a child before its own parameter and buffer, as Python classes often do.
struct Mixed : torch::nn::Module {
  Mixed() {
    net =
        register_module("net",
                        torch::nn::Sequential(
                            torch::nn::Linear(2, 3), torch::nn::ReLU(), torch::nn::BatchNorm1d(3)));
    table = register_buffer("table", torch::arange(2));
    weight = register_parameter("weight", torch::ones({2, 2}));
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
  }
  torch::nn::Sequential net{nullptr};
  at::Tensor table, weight, bias;
};

TEST_CASE("the names of a module's tensors stand in the order of Python's state dict") {
  // What `list(module.state_dict())` of the same module in Python prints (parameters of a module
  // before its buffers, both before its children; absent ones left out).
  const std::vector<std::string> expected = {"weight",
                                             "table",
                                             "net.0.weight",
                                             "net.0.bias",
                                             "net.2.weight",
                                             "net.2.bias",
                                             "net.2.running_mean",
                                             "net.2.running_var",
                                             "net.2.num_batches_tracked"};
  CHECK(names_of(state_dict(Mixed())) == expected);
}

TEST_CASE("loading copies into the module's own tensors") {
  Mixed module;
  StateDict source;
  for (const auto& [name, tensor] : state_dict(module))
    source.emplace_back("unets.0." + name, at::full_like(tensor, 3).to(at::kDouble));
  source.emplace_back("other.weight", at::ones({1}));
  const at::Tensor before = module.weight;
  const LoadReport report = load_state_dict(module, source, "unets.0.");
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
  CHECK(before.is_same(module.weight));
  CHECK(before[1][1].item<float>() == 3.0F);
  CHECK(before.requires_grad());
  CHECK(module.table[1].item<int64_t>() == 3);
}

TEST_CASE("buffers of a noise schedule keep their values, and may be absent") {
  torch::nn::Module module;
  const auto schedule =
      module.register_module("noise_scheduler", std::make_shared<torch::nn::Module>("Schedule"));
  const at::Tensor betas =
      schedule->register_buffer("betas", at::tensor({0.1003, 0.2}, at::kDouble));
  test::CapturedLog log;
  load_state_dict(module, {{"noise_scheduler.betas", betas.to(at::kHalf)}});
  load_state_dict(module, {});
  CHECK(log.count("another noise schedule") == 0);
  load_state_dict(module, {{"noise_scheduler.betas", betas * 1.1}});
  CHECK(log.count(
            "noise_scheduler.betas: this is another noise schedule than that of the config") == 1);
  CHECK(betas[0].item<double>() == 0.1003);
  CHECK_THROWS_WITH(load_state_dict(module, {{"noise_scheduler.betas", at::zeros({3})}}),
                    Contains("noise_scheduler.betas: expected [2], got [3]"));
}

TEST_CASE("a strict load lists everything that does not fit and leaves the module as it was") {
  Mixed module;
  StateDict source = state_dict(module);
  source.erase(source.begin() + 2);  // net.0.weight
  source.emplace_back("extra.bias", at::ones({1}));
  source[0].second = at::zeros({2, 5});
  source[1].second = at::full({2}, 9);
  const auto load = [&] { load_state_dict(module, source, "", /*strict=*/true, "a.pth: /model"); };
  CHECK_THAT(test::message_of<DataError>([&] { load(); }),
             Contains("a.pth: /model") && Contains("missing (1):\n    net.0.weight") &&
                 Contains("unexpected (1):\n    extra.bias") &&
                 Contains("weight: expected [2, 2], got [2, 5]"));
  CHECK(module.table[1].item<int64_t>() == 1);
}

TEST_CASE("a load that is not strict reports names but still refuses other shapes") {
  Mixed module;
  StateDict source = {{"weight", at::zeros({2, 2})}, {"extra", at::ones({1})}};
  const LoadReport report = load_state_dict(module, source, "", /*strict=*/false);
  CHECK(report.missing.size() == 8);
  CHECK(report.unexpected == std::vector<std::string>{"extra"});
  CHECK(module.weight.sum().item<float>() == 0.0F);
  source[0].second = at::zeros({3});
  CHECK_THROWS_WITH(load_state_dict(module, source, "", /*strict=*/false),
                    Contains("of another shape (1)"));
}

TEST_CASE("long lists of names are shortened") {
  torch::nn::Sequential large;
  for (int i = 0; i < 100; ++i) large->push_back(torch::nn::Linear(1, 1));
  CHECK_THROWS_WITH(load_state_dict(*large, StateDict{}),
                    Contains("missing (200)") && Contains("and 185 more"));
}

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
          Contains(
              "things with them: 0.21.0 to 0.23.2, 0.23.3 to 0.23.10, 0.24.0 to 1.1.0, 1.2.0 to "
              "1.2.2, 1.4.0 to 1.4.2, 1.4.3 to 1.9.0\n  Set --written-by to the version that"));
  CHECK_THROWS_WITH(version_of(kOfMany, "1.0.2", "1.1.0"),
                    Contains("--written-by 1.1.0: the file a.pth says that dalle2-pytorch 1.0.2") &&
                        Contains("\n  Set --written-by to 1.0.2."));
  CHECK_THROWS_WITH(
      version_of(kOfMany, nullptr, "1.12.0"),
      Contains("--written-by names dalle2-pytorch 1.12.0, but its tensors are those of "
               "0.21.0 to 1.9.0"));
  CHECK_THROWS_WITH(version_of(kOfMany, nullptr, "1.x"),
                    Contains("--written-by: expected a version of dalle2-pytorch such as 1.1.0"));
  CHECK_THROWS_WITH(version_of(kOfMany, nullptr, "0.12.3"),
                    Contains("expected dalle2-pytorch 0.14.0 to 1.15.6, got 0.12.3"));
  CHECK_THROWS_WITH(version_of(named({{"unets.0.final_conv.0.weight", {1}}}), nullptr, ""),
                    Contains("was written by dalle2-pytorch before 0.14.0") &&
                        Contains("take a decoder of 0.14.0 or later"));
  CHECK_THROWS_WITH(
      version_of(kOfMany, "1.12.0", ""),
      Contains("a.pth: says that it was written by dalle2-pytorch 1.12.0, but its "
               "tensors are those of 0.21.0 to 1.9.0\n  Get the file anew, or take") &&
          Contains("name one of those by --written-by."));
  CHECK_THROWS_WITH(version_of(named({{"unets.0.downs.0.2.0.block1.project.weight", {8}},
                                      {"unets.0.downs.0.3.0.block1.project.weight", {8}}}),
                               nullptr,
                               ""),
                    Contains("those of no version") &&
                        Contains("`dalle2-train inspect a.pth` lists the tensors"));
}

}  // namespace
}  // namespace dalle2
