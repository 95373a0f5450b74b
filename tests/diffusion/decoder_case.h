// SPDX-License-Identifier: MIT
// Random decoders that tests/parity/make_decoder.py and make_precision.py drew.
#pragma once

#include <set>

#include "checkpoint/module_state.h"
#include "diffusion/decoder_fixture.h"

namespace dalle2::test {

// In fp32, of decoders and priors. The backward pass doubles the depth, and gradients cancel more
// than values do.
inline constexpr double kGradientTolerance = 5e-4;
// The fixture says how far the reference's own numbers move when every weight moves by one
// rounding. Small groups of a group norm, the division by sqrt(acp) at the noisiest step, and
// sampling loops that repeat it amplify that; gradients that vanish in exact arithmetic (a bias
// before a norm) consist of nothing else. Some hundred operations round once each: 20 such steps.
inline constexpr double kNoiseSteps = 20;
// What cancels exactly in one order of summation may not in another: one rounding of the largest.
inline constexpr double kCancellation = 1.2e-7;

// A fixture's digest: L2 norm, projections on two unit waves, eight evenly spread entries. [11]
// fp64
inline at::Tensor digest(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).flatten();
  const int64_t n = flat.numel();
  std::vector<at::Tensor> values = {flat.norm()};
  for (const auto& [f, phase] : {std::pair(0.37, 0.0), std::pair(1.13, 0.5)}) {
    const at::Tensor w = wave({n}, f, phase).to(at::kDouble);
    const at::Tensor length = w.norm();
    values.push_back(length.item<double>() > 0 ? flat.dot(w / length) : at::zeros({}, at::kDouble));
  }
  for (int64_t i = 0; i < 8; ++i) values.push_back(flat[i * n / 8]);
  return at::stack(values);
}

/// Shared parameters once, as Python lists them.
inline StateDict parameters_of(const torch::nn::Module& module) {
  std::set<const void*> seen;
  StateDict parameters;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

/// Compares each gradient with its digest in `rows`. @param noise of the reference, a number a row
/// @param turned share of the largest gradient by which a rounding may change one besides
inline void expect_gradients(const torch::nn::Module& module,
                             const at::Tensor& rows,
                             const at::Tensor& noise,
                             double turned = 0) {
  const StateDict parameters = parameters_of(module);
  REQUIRE(static_cast<int64_t>(parameters.size()) == rows.size(0));
  const double largest = rows.select(1, 0).max().item<double>();
  int64_t row = 0;
  for (const auto& [name, parameter] : parameters) {
    const at::Tensor& gradient = parameter.grad();
    const at::Tensor expected = rows[row].to(at::kDouble);
    const at::Tensor found = digest(gradient.defined() ? gradient : at::zeros({1}));
    const double error = (found - expected).abs().max().item<double>();
    const double norm = expected[0].item<double>();
    const double steps =
        kNoiseSteps * noise[row].item<double>() + (kCancellation + turned) * largest;
    INFO("gradient of " << name << ", norm " << norm << ", error " << error << ", noise " << steps);
    CHECK(error <= kGradientTolerance * norm + steps);
    ++row;
  }
}

struct Case {
  explicit Case(const std::string& path)
      : fixture(load_fixture(path)), config(fixture.json["decoder"]) {}

  Fixture fixture;
  nlohmann::json config;

  DecoderInputs inputs(int64_t side) const {
    const int64_t batch = fixture.json["batch"].get<int64_t>();
    const bool normalize = config["auto_normalize_img"].get<bool>();
    DecoderInputs in;
    in.images = wave({batch, config["channels"].get<int64_t>(), side, side},
                     0.05,
                     0.3,
                     normalize ? 0.5 : 1.0,
                     normalize ? 0.5 : 0.0);
    if (!config["unconditional"].get<bool>()) {
      in.image_embeds =
          wave({batch, config["unets"][0]["image_embed_dim"].get<int64_t>()}, 0.9, 0.3);
    }
    if (const nlohmann::json& length = fixture.json["text_length"]; !length.is_null()) {
      in.text_encodings = wave({batch, length.get<int64_t>(), 5}, 0.5, 0.1);
      in.text_encodings[1].slice(0, length.get<int64_t>() / 2).zero_();
    }
    return in;
  }

  template <class T>
  T scalar(const std::string& name, T otherwise) const {
    return fixture.has(name) ? fixture.tensor(name).item<T>() : otherwise;
  }

  DecoderStepNoise draws(int64_t unet_number, const UnetPlan& plan) const {
    const std::string at = fmt::format("stage{}.draw.", unet_number);
    const NoiseSource normal = wave_noise();
    const int64_t batch = fixture.json["batch"].get<int64_t>();
    const int64_t channels = config["channels"].get<int64_t>();
    const int64_t side = plan.map_side(plan.random_crop_size.value_or(plan.image_size));
    DecoderStepNoise d;
    if (plan.lowres_noise) {
      d.lowres.noise_level = fixture.tensor(at + "lowres_level");
      d.lowres.noise = normal({batch, channels, plan.image_size, plan.image_size});
    }
    d.noise = normal({batch, plan.unet.channels, side, side});
    d.times = fixture.tensor(at + "times");
    d.image_keep_mask = fixture.tensor(at + "image_keep");
    d.text_keep_mask = fixture.tensor(at + "text_keep");
    d.self_condition = scalar<bool>(at + "self_condition", false);
    d.lowres.blur = scalar<bool>(at + "blur", false);
    d.lowres.blur_sigma = scalar<double>(at + "blur_sigma", 0.6);
    d.lowres.blur_kernel_size =
        scalar<int64_t>(at + "blur_kernel_size",
                        config.value("blur_kernel_size", nlohmann::json(3)).is_number()
                            ? config.value("blur_kernel_size", int64_t{3})
                            : 3);
    if (plan.random_crop_size) {
      const at::Tensor offsets = fixture.tensor(at + "crop_offsets");
      for (int64_t i = 0; i < batch; ++i)
        d.crop_offsets.push_back({offsets[i][0].item<int64_t>(), offsets[i][1].item<int64_t>()});
    }
    return d;
  }
};

}  // namespace dalle2::test
