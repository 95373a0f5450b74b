// SPDX-License-Identifier: MIT
// Random configurations from the whole option space against the reference
// (tests/parity/make_decoder.py).
#include "diffusion/decoder_fixture.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

// fp32 kernels of two libraries sum in other orders: 1e-6 or so a layer, some tens of layers.
constexpr double kLossTolerance = 1e-4;
// The backward pass doubles the depth, and gradients cancel more than values do.
constexpr double kGradientTolerance = 5e-4;
// A loop feeds its own error to the network again at every step.
constexpr double kSampleTolerance = 1e-3;
// The fixture says how far the reference's own numbers move when every weight moves by one
// rounding. Small groups of a group norm, the division by sqrt(acp) at the noisiest step, and
// sampling loops that repeat it amplify that; gradients that vanish in exact arithmetic (a bias
// before a norm) are nothing else. Some hundred operations round once each: 20 such steps.
constexpr double kNoiseSteps = 20;
// What cancels exactly in one order of summation may not in another: one rounding of the largest.
constexpr double kCancellation = 1.2e-7;

// A fixture's digest: L2 norm, projections on two unit waves, eight evenly spread entries. [11]
// fp64
at::Tensor digest(const at::Tensor& tensor) {
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

struct Case {
  explicit Case(const std::string& path)
      : fixture(load_fixture(path)), config(fixture.json["decoder"]) {}

  Fixture fixture;
  json config;

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
    if (const json& length = fixture.json["text_length"]; !length.is_null()) {
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
    const int64_t side = plan.random_crop_size.value_or(plan.image_size);
    DecoderStepNoise d;
    if (plan.lowres_noise) {
      d.lowres.noise_level = fixture.tensor(at + "lowres_level");
      d.lowres.noise = normal({batch, channels, plan.image_size, plan.image_size});
    }
    d.noise = normal({batch, channels, side, side});
    d.times = fixture.tensor(at + "times");
    d.image_keep_mask = fixture.tensor(at + "image_keep");
    d.text_keep_mask = fixture.tensor(at + "text_keep");
    d.self_condition = scalar<bool>(at + "self_condition", false);
    d.lowres.blur = scalar<bool>(at + "blur", false);
    d.lowres.blur_sigma = scalar<double>(at + "blur_sigma", 0.6);
    d.lowres.blur_kernel_size =
        scalar<int64_t>(at + "blur_kernel_size",
                        config.value("blur_kernel_size", json(3)).is_number()
                            ? config.value("blur_kernel_size", int64_t{3})
                            : 3);
    if (plan.random_crop_size) {
      const at::Tensor offsets = fixture.tensor(at + "crop_offsets");
      for (int64_t i = 0; i < batch; ++i) {
        d.crop_offsets.push_back({offsets[i][0].item<int64_t>(), offsets[i][1].item<int64_t>()});
      }
    }
    return d;
  }
};

void check_gradients(const Case& c, Decoder& decoder, int64_t unet_number) {
  const at::Tensor rows = c.fixture.tensor(fmt::format("stage{}.grads", unet_number));
  const at::Tensor noise = c.fixture.tensor(fmt::format("stage{}.grad_noise", unet_number));
  const auto parameters = decoder->unet(unet_number)->named_parameters();
  REQUIRE(static_cast<int64_t>(parameters.size()) == rows.size(0));
  const double largest = rows.select(1, 0).max().item<double>();
  int64_t row = 0;
  for (const auto& item : parameters) {
    const at::Tensor& gradient = item.value().grad();
    const at::Tensor expected = rows[row].to(at::kDouble);
    const at::Tensor found = digest(gradient.defined() ? gradient : at::zeros({1}));
    const double error = (found - expected).abs().max().item<double>();
    const double norm = expected[0].item<double>();
    const double steps = kNoiseSteps * noise[row].item<double>() + kCancellation * largest;
    INFO("gradient of unet " << unet_number << ": " << item.key() << ", norm " << norm << ", error "
                             << error << ", noise " << steps);
    CHECK(error <= kGradientTolerance * norm + steps);
    ++row;
  }
}

// The noise must not excuse much: nine of ten cases have to keep to the plain tolerance.
void expect_mostly_strict(size_t lenient, size_t all) {
  INFO(lenient << " of " << all << " cases needed more than the plain tolerance");
  CHECK(10 * lenient <= all);
}

}  // namespace

TEST_CASE("Losses and gradients of random decoders equal the reference's", "[parity]") {
  size_t steps = 0, lenient = 0;
  for (const std::string& path : fixture_files(fixture_dir("decoder"))) {
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of(c.config);
    decoder->train();
    const int64_t side =
        decoder->plan().stages.back().image_size + c.fixture.json["image_margin"].get<int64_t>();
    for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
      const std::string at = fmt::format("stage{}.", n);
      INFO("unet " << n << " of " << c.config.dump());
      decoder->zero_grad();
      at::Tensor lowres;
      const at::Tensor loss =
          decoder->loss(c.inputs(side),
                        n,
                        c.draws(n, decoder->plan().stages[static_cast<size_t>(n - 1)]),
                        &lowres);
      const double expected = c.fixture.tensor(at + "loss").item<double>();
      const double error = std::abs(loss.item<double>() - expected);
      const double noise = c.fixture.tensor(at + "loss_noise").item<double>();
      INFO("loss " << expected << ", error " << error << ", noise " << noise);
      CHECK(error <= std::max(kLossTolerance * std::abs(expected), kNoiseSteps * noise));
      lenient += error > kLossTolerance * std::abs(expected) ? 1 : 0;
      ++steps;
      if (n > 1)
        expect_close(digest(lowres), c.fixture.tensor(at + "lowres"), 1e-5, "low-resolution image");
      loss.backward();
      check_gradients(c, decoder, n);
    }
  }
  expect_mostly_strict(lenient, steps);
}

TEST_CASE("Sampling loops of random decoders equal the reference's", "[parity]") {
  const std::vector<std::string> paths = fixture_files(fixture_dir("decoder"));
  size_t lenient = 0;
  for (const std::string& path : paths) {
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of(c.config);
    const json& sampling = c.fixture.json["sampling"];
    INFO(sampling.dump() << "\n" << c.config.dump());
    const DecoderInputs in = c.inputs(decoder->plan().stages.back().image_size);
    DecoderSampleOptions options;
    options.image_embeds = in.image_embeds;
    options.text_encodings = in.text_encodings;
    options.batch_size = c.fixture.json["batch"].get<int64_t>();
    const json& scale = sampling["cond_scale"];
    if (scale.is_array()) {
      options.cond_scale = scale.get<std::vector<double>>();
    } else {
      options.cond_scale = scale.get<double>();
    }
    options.start_at_unet = sampling["start_at_unet_number"].get<int64_t>();
    if (options.start_at_unet > 1) options.image = in.images;
    if (!sampling["stop_at_unet_number"].is_null()) {
      options.stop_at_unet = sampling["stop_at_unet_number"].get<int64_t>();
    }
    if (sampling["inpaint"].get<bool>()) {
      options.inpaint_image = in.images;
      options.inpaint_mask =
          at::zeros({options.batch_size, in.images.size(2), in.images.size(3)}, at::kBool);
      options.inpaint_mask.slice(1, 2, 7).slice(2, 3, 8).fill_(true);
      options.inpaint_resample_times = sampling["inpaint_resample_times"].get<int64_t>();
    }
    options.noise = wave_noise();
    const at::Tensor expected = c.fixture.tensor("sample");
    const at::Tensor drawn = decoder->sample(options);
    REQUIRE(drawn.sizes() == expected.sizes());
    const double largest = expected.abs().max().item<double>();
    const double noise = c.fixture.json["sample_noise"].get<double>() / largest;
    expect_close(drawn, expected, std::max(kSampleTolerance, kNoiseSteps * noise), "sample");
    const double error = (drawn - expected).abs().max().item<double>();
    lenient += error > kSampleTolerance * largest ? 1 : 0;
  }
  expect_mostly_strict(lenient, paths.size());
}

}  // namespace dalle2::test
