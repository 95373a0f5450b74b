// SPDX-License-Identifier: MIT
// Unets against the reference: random configurations with every gradient.
#include <fmt/ranges.h>

#include "model/unet_support.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

// float32 through some 30 layers, summed in another order.
constexpr double kForwardTolerance = 1e-4;
// The backward pass is as deep again, and sums over all pixels.
constexpr double kUnetGradientTolerance = 5e-4;
// The fixture says how far the reference's own gradient moves when every weight moves by one
// rounding: small groups of a group norm amplify that, and gradients that vanish by symmetry (the
// bias before a group norm) are nothing else. Some hundred operations round once each: 20 steps.
constexpr double kNoiseSteps = 20;
// What cancels exactly in one order of summation may not in another: one rounding of the largest.
constexpr double kCancellation = 1.2e-7;

UnetConditions conditions_of(const Fixture& fixture) {
  const auto find = [&](const char* name) {
    return fixture.has(name) ? fixture.tensor(name) : at::Tensor();
  };
  UnetConditions c;
  c.image_embed = find("image_embed");
  c.text_encodings = find("text_encodings");
  c.lowres_cond_img = find("lowres_cond_img");
  c.lowres_noise_level = find("lowres_noise_level");
  c.self_cond = find("self_cond");
  c.image_keep_mask = find("image_keep_mask");
  c.text_keep_mask = find("text_keep_mask");
  return c;
}

// Names and shapes in their order, as one number.
std::string names_fnv1a(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    if (!text.empty()) text += '\n';
    text += fmt::format("{} {}", item.key(), fmt::join(item.value().sizes(), ","));
  }
  uint64_t value = 0xcbf29ce484222325ULL;
  for (const char letter : text)
    value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  return fmt::format("{:016x}", value);
}

void check_gradients(const torch::nn::Module& unet, const Fixture& fixture) {
  const at::Tensor rows = fixture.tensor("grads").to(at::kDouble);
  const at::Tensor noise = fixture.tensor("grad_noise");
  REQUIRE(static_cast<int64_t>(unet.parameters().size()) == rows.size(0));
  const double largest = rows.select(1, 0).max().item<double>();
  int64_t row = 0;
  for (const auto& item : unet.named_parameters()) {
    const at::Tensor& grad = item.value().grad();
    const at::Tensor found = compact(grad.defined() ? grad : at::zeros_like(item.value()));
    const double norm = rows[row][0].item<double>();
    const double error = (found - rows[row]).abs().max().item<double>();
    const double steps = kNoiseSteps * noise[row].item<double>() + kCancellation * largest;
    INFO("gradient of " << item.key() << ", norm " << norm << ", noise " << steps);
    CHECK(error <= kUnetGradientTolerance * norm + steps);
    ++row;
  }
}

void check_case(const std::string& path) {
  const Fixture fixture = load_fixture(path);
  INFO(path << "\n" << fixture.json.dump());
  Unet unet(unet_config(fixture.json.at("unet")));
  CHECK(names_fnv1a(*unet) == fixture.json.at("names_fnv1a").get<std::string>());
  int64_t count = 0;
  for (const at::Tensor& p : unet->parameters()) count += p.numel();
  CHECK(count == fixture.json.at("num_parameters").get<int64_t>());

  fill_parameters(*unet);
  unet->train();
  const at::Tensor x = fixture.tensor("x").clone().set_requires_grad(true);
  const at::Tensor time = fixture.tensor("time");
  const UnetConditions given = conditions_of(fixture);
  const at::Tensor out = unet->forward(x, time, given);
  // The committed cases keep to the plain tolerance, and have no noise noted; of those that are
  // drawn anew some do not, where a small group of a norm amplifies a rounding.
  const auto largest_of = [&](const char* name) {
    return fixture.tensor(name).abs().max().item<double>();
  };
  const double noise = kNoiseSteps * fixture.json.value("out_noise", 0.0);
  const double tolerance = kForwardTolerance + noise / largest_of("out");
  expect_close(out, fixture.tensor("out"), tolerance, "forward");
  const at::Tensor terms = out * wave(out.sizes(), 0.53, 0.2);
  const at::Tensor loss = terms.sum();
  // The terms nearly cancel: the error of a sum is relative to the sum of their sizes.
  CHECK(std::abs(loss.item<double>() - fixture.tensor("loss").item<double>()) <=
        tolerance * terms.abs().sum().item<double>());
  loss.backward();
  check_gradients(*unet, fixture);
  const at::Tensor grad_x = fixture.tensor("grad_x");
  const double steps = kNoiseSteps * fixture.json.at("grad_x_noise").get<double>();
  CHECK((x.grad() - grad_x).abs().max().item<double>() <=
        kUnetGradientTolerance * grad_x.abs().max().item<double>() + steps);

  const torch::NoGradGuard no_grad;
  UnetConditions null = given;
  null.image_keep_mask = at::zeros({x.size(0)}, at::kBool);
  null.text_keep_mask = null.image_keep_mask;
  const double null_tolerance = kForwardTolerance + noise / largest_of("null");
  expect_close(unet->forward(x, time, null), fixture.tensor("null"), null_tolerance, "null");
  // null + 2.5 (out - null): the errors of both, so far amplified.
  expect_close(unet->forward_with_cond_scale(x, time, given, 2.5),
               fixture.tensor("cfg"),
               (2.5 * tolerance * largest_of("out") + 1.5 * null_tolerance * largest_of("null")) /
                   largest_of("cfg"),
               "classifier-free guidance");
}

TEST_CASE("unets of random configurations equal the reference with all their gradients") {
  for (const std::string& path : fixture_files(fixture_folder("unet"), 12)) check_case(path);
}

}  // namespace
}  // namespace dalle2::test
