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
// Gradients that are zero in exact arithmetic (a bias before a normalisation) are rounding noise:
// what is this small beside the whole gradient is compared with the whole.
constexpr double kGradientFloor = 1e-4;

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
  const std::string prefix = fmt::format("stage{}.grad.", unet_number);
  double total = 0;
  for (const auto& [name, value] : c.fixture.tensors) {
    if (name.starts_with(prefix)) total += std::pow(value[0].item<double>(), 2);
  }
  total = std::sqrt(total);
  for (const auto& item : decoder->unet(unet_number)->named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    INFO("gradient of unet " << unet_number << ": " << item.key());
    if (!c.fixture.has(prefix + item.key())) {
      CHECK((!gradient.defined() || gradient.abs().max().item<double>() == 0));
      continue;
    }
    REQUIRE(gradient.defined());
    const at::Tensor expected = c.fixture.tensor(prefix + item.key()).to(at::kDouble);
    const double scale = std::max(expected[0].item<double>(), kGradientFloor * total);
    const double error = (digest(gradient) - expected).abs().max().item<double>();
    INFO("error " << error << ", norm " << expected[0].item<double>() << ", total " << total);
    CHECK(error <= kGradientTolerance * scale);
  }
}

}  // namespace

TEST_CASE("Losses and gradients of random decoders equal the reference's", "[parity]") {
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
      expect_close(loss, c.fixture.tensor(at + "loss"), kLossTolerance, "loss");
      if (n > 1)
        expect_close(digest(lowres), c.fixture.tensor(at + "lowres"), 1e-5, "low-resolution image");
      loss.backward();
      check_gradients(c, decoder, n);
    }
  }
}

TEST_CASE("Sampling loops of random decoders equal the reference's", "[parity]") {
  for (const std::string& path : fixture_files(fixture_dir("decoder"))) {
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
    expect_close(decoder->sample(options), c.fixture.tensor("sample"), kSampleTolerance, "sample");
  }
}

}  // namespace dalle2::test
