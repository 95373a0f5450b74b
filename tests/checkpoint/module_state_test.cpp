// SPDX-License-Identifier: MIT
#include "checkpoint/module_state.h"

#include <torch/nn.h>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "checkpoint_test_tools.h"
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

}  // namespace

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

}  // namespace dalle2
