// SPDX-License-Identifier: MIT
#include "optim/flat_parameters.h"

#include <catch2/catch.hpp>

#include "flat_module.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

StateDict three_parameters() {
  return {
      {"bias", test::wave({3})}, {"weight", test::wave({5, 7})}, {"token", test::wave({1, 2, 2})}};
}

TEST_CASE("the tensors of a module become views of one buffer and keep their values") {
  test::FlatModule module(three_parameters());
  const at::Tensor weight = module.parameter("weight");
  const at::Tensor before = weight.clone();
  const FlatParameters flat(module);

  CHECK(weight.is_same(module.parameter("weight")));
  CHECK(at::equal(weight, before));
  CHECK(weight.requires_grad());
  CHECK(weight.is_leaf());
  for (const FlatEntry& entry : flat.parameters()) {
    CHECK(entry.tensor.data_ptr<float>() == flat.values().data_ptr<float>() + entry.offset);
    CHECK(entry.offset % kFlatAlignment == 0);
  }
  {
    const torch::NoGradGuard no_grad;
    flat.values().mul_(2.0);
  }
  CHECK(at::equal(weight, before * 2.0));
}

TEST_CASE("parameters that decay come first and the order of registration stays known") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  REQUIRE(flat.parameters().size() == 3);
  CHECK(flat.parameters()[0].name == "bias");
  CHECK(flat.parameters()[1].name == "weight");
  CHECK(flat.parameters()[2].name == "token");
  CHECK(flat.parameters()[1].offset == 0);
  CHECK(flat.parameters()[2].offset == 48);  // 35 floats, up to the next multiple of 16
  CHECK(flat.parameters()[0].offset == 64);
}

TEST_CASE("small filters over many channels lie channels last, and any tensor finds its order") {
  const at::Tensor small = test::wave({4, 8, 3, 3}), large = test::wave({4, 8, 7, 7});
  test::FlatModule module({{"small", small}, {"large", large}, {"few", test::wave({4, 3, 3, 3})}});
  const FlatParameters flat(module);
  const at::Tensor weight = module.parameter("small");
  CHECK(at::equal(weight, small));
  CHECK(weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK_FALSE(weight.is_contiguous());
  CHECK(module.parameter("large").is_contiguous());
  CHECK(module.parameter("few").is_contiguous());
  CHECK(weight.data_ptr<float>() == flat.values().data_ptr<float>() + flat.parameters()[0].offset);

  const FlatEntry& entry = flat.parameters()[0];
  CHECK(at::equal(entry.of(flat.values()), small));
  // The other way: part of a tensor into part of a buffer.
  const at::Tensor buffer = at::zeros_like(flat.values());
  for (const FlatSlice& slice : {FlatSlice{0, 100}, FlatSlice{100, buffer.numel()}}) {
    copy_into_slice(slice.of(buffer), slice, entry.offset, entry.flattened(-small));
  }
  CHECK(at::equal(entry.of(buffer), -small));
  CHECK(buffer.count_nonzero().item<int64_t>() == small.count_nonzero().item<int64_t>());
}

TEST_CASE("floating buffers lie behind the parameters and others stay where they are") {
  test::FlatModule module({{"weight", test::wave({2, 2})}});
  module.register_buffer("running", at::full({3}, 7.0F));
  const at::Tensor count = module.register_buffer("count", at::full({}, 5, at::kLong));
  const FlatParameters flat(module);
  REQUIRE(flat.buffers().size() == 1);
  CHECK(flat.buffers()[0].offset == flat.parameter_span());
  CHECK(flat.values().numel() == flat.parameter_span() + kFlatAlignment);
  CHECK(flat.values()[flat.parameter_span()].item<float>() == 7.0F);
  CHECK(count.item<int64_t>() == 5);
}

TEST_CASE("a parameter registered twice is held once") {
  test::FlatModule module({{"weight", test::wave({2, 2})}});
  auto child = std::make_shared<torch::nn::Module>();
  child->register_parameter("same", module.parameter("weight"));
  module.register_module("child", child);
  CHECK(FlatParameters(module).parameters().size() == 1);
}

TEST_CASE("a backward pass fills the flat gradients and says which parameters it reached") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  const at::Tensor g = test::wave({5, 7}, 0.9);
  module.backward({{"weight", g}});

  CHECK(gradients.received() == std::vector<bool>{false, true, false});
  CHECK(at::equal(module.parameter("weight").grad(), g));
  CHECK(module.parameter("weight").grad().data_ptr<float>() ==
        gradients.values().data_ptr<float>());
  CHECK_FALSE(module.parameter("bias").grad().defined());
}

TEST_CASE("a second backward pass adds to the first in place") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  const at::Tensor g = test::wave({5, 7}, 0.9), h = test::wave({5, 7}, 0.2);
  module.backward({{"weight", g}});
  const float* place = module.parameter("weight").grad().data_ptr<float>();
  module.backward({{"weight", h}, {"bias", test::wave({3})}});
  CHECK(at::equal(gradients.values().narrow(0, 0, 35).view({5, 7}), g + h));
  CHECK(module.parameter("weight").grad().data_ptr<float>() == place);
  CHECK(gradients.received() == std::vector<bool>{true, true, false});
}

TEST_CASE("a parameter that got a gradient once and none the next time counts as zero") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  module.backward({{"weight", test::wave({5, 7})}, {"bias", at::ones({3})}});
  gradients.zero_grad();
  CHECK_FALSE(module.parameter("weight").grad().defined());
  CHECK(gradients.received() == std::vector<bool>{false, false, false});
  module.backward({{"bias", at::full({3}, 2.0F)}});
  CHECK(gradients.received() == std::vector<bool>{true, false, false});
  CHECK(gradients.values().sum().item<float>() == 6.0F);
}

/// Depends on the second tensor too, but has no gradient of it.
struct OfFirstAlone : torch::autograd::Function<OfFirstAlone> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                            const at::Tensor& first,
                            const at::Tensor& second) {
    return first.sum() + second.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].expand({4}).clone(), at::Tensor()};
  }
};

TEST_CASE(
    "a pass may reach a parameter without a gradient of it, as one does that is computed again") {
  struct Two : torch::nn::Module {
    at::Tensor first = register_parameter("first", at::ones({4}));
    at::Tensor second = register_parameter("second", at::ones({4}));
  } module;
  const FlatParameters parameters(module);
  FlatGradients gradients(parameters);
  OfFirstAlone::apply(module.first, module.second).backward();
  CHECK(gradients.received() == std::vector<bool>{true, false});
  CHECK(gradients.values().sum().item<float>() == 4);
}

TEST_CASE("the account of gradients is restored without their values") {
  torch::nn::Linear linear(2, 1);
  const FlatParameters parameters(*linear);
  FlatGradients gradients(parameters);
  linear->forward(at::ones({1, 2})).sum().backward();
  const at::Tensor values = gradients.values().clone();
  gradients.restore_account({false, false});
  CHECK_FALSE(linear->weight.grad().defined());
  CHECK(gradients.values().abs().sum().item<float>() == 0);  // what nobody has received
  gradients.values().copy_(values);
  gradients.restore_account({true, true});
  CHECK(at::equal(gradients.values(), values));
  linear->forward(at::ones({1, 2})).sum().backward();  // adds
  CHECK(at::equal(gradients.values(), 2 * values));
}

TEST_CASE("who listens hears of each gradient as it arrives, in every pass") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  std::vector<size_t> heard;
  gradients.set_listener([&](size_t parameter) { heard.push_back(parameter); });
  module.backward({{"weight", test::wave({5, 7})}});
  module.backward({{"bias", at::ones({3})}});
  module.backward({{"weight", test::wave({5, 7})}});
  CHECK(heard == std::vector<size_t>{1, 0, 1});
  gradients.set_listener({});
  module.backward({{"bias", at::ones({3})}});
  CHECK(heard.size() == 3);
}

TEST_CASE("a gradient that another process has counts as one, and is kept until zero_grad()") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  module.backward({{"bias", at::ones({3})}});
  gradients.values().narrow(0, 0, 35).fill_(2.0F);  // the sum over the processes
  gradients.set_received({false, true, false});
  CHECK(gradients.received() == std::vector<bool>{true, true, false});
  CHECK(gradients.values().sum().item<float>() == 73.0F);
  gradients.zero_grad();
  CHECK(gradients.received() == std::vector<bool>{false, false, false});
  CHECK(gradients.values().sum().item<float>() == 0.0F);
}

TEST_CASE("the module can go on without its flat gradients") {
  test::FlatModule module(three_parameters());
  const FlatParameters flat(module);
  { const FlatGradients gradients(flat); }
  module.backward({{"bias", at::ones({3})}});
  CHECK(at::equal(module.parameter("bias").grad(), at::ones({3})));
}

TEST_CASE("a parameter of another type is refused by name") {
  test::FlatModule module({{"weight", test::wave({2, 2}).to(at::kDouble)}});
  REQUIRE_THROWS_WITH(FlatParameters(module), Catch::Contains("'weight' is Double"));
}

}  // namespace
}  // namespace dalle2
