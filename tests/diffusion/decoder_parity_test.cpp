// SPDX-License-Identifier: MIT
// Random configurations from the whole option space against the reference
// (tests/parity/make_decoder.py), and some in the latent space of VAEs (make_latent.py).

#include "checkpoint/module_state.h"
#include "diffusion/decoder_case.h"
#include "optim/precision.h"

namespace dalle2::test {

namespace {

using nlohmann::json;

// fp32 kernels of two libraries sum in other orders: 1e-6 or so a layer, some tens of layers.
constexpr double kLossTolerance = 1e-4;
// A loop feeds its own error to the network again at every step.
constexpr double kSampleTolerance = 1e-3;
// The rounding error of Winograd's algorithm is up to three times that of a plain sum.
constexpr double kSampleNoiseSteps = 3 * kNoiseSteps;

void check_gradients(const Case& c, Decoder& decoder, int64_t unet_number) {
  // Of an absolute error the gradient at a pixel that is hit is a sign, which a rounding turns: two
  // shares of one value.
  const UnetPlan& stage = decoder->plan().stages.at(static_cast<size_t>(unet_number - 1));
  const int64_t side = stage.map_side(stage.image_size);
  const int64_t values = c.fixture.json["batch"].get<int64_t>() * stage.unet.channels * side * side;
  INFO("unet " << unet_number);
  expect_gradients(*decoder->unet(unet_number),
                   c.fixture.tensor(fmt::format("stage{}.grads", unet_number)),
                   c.fixture.tensor(fmt::format("stage{}.grad_noise", unet_number)),
                   c.config["loss_type"] == "l1" ? 2.0 / static_cast<double>(values) : 0.0);
}

// The noise must not excuse much: nine of ten cases have to keep to the plain tolerance.
void expect_mostly_strict(size_t lenient, size_t all) {
  INFO(lenient << " of " << all << " cases needed more than the plain tolerance");
  CHECK(10 * lenient <= all);
}

/// With the weights of its VAEs, too.
Decoder decoder_of_case(const Case& c) {
  Decoder decoder = decoder_of(c.config);
  for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
    VqganVae vae = decoder->vae(n);
    if (vae.is_empty()) continue;
    fill_parameters(*vae);
    for (const auto& buffer : vae->named_buffers()) {
      if (buffer.key() == "vq._codebook.initted") buffer.value().fill_(true);
      if (buffer.key() == "vq._codebook.embed")
        buffer.value().copy_(c.fixture.tensor(fmt::format("codebook{}", n - 1)));
    }
  }
  return decoder;
}

void check_training(const char* folder, size_t cases) {
  size_t steps = 0, lenient = 0;
  for (const std::string& path : fixture_files(fixture_folder(folder), cases)) {
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of_case(c);
    decoder->train();
    const int64_t side =
        decoder->plan().stages.back().image_size + c.fixture.json["image_margin"].get<int64_t>();
    for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
      const std::string at = fmt::format("stage{}.", n);
      INFO("unet " << n << " of " << c.config.dump());
      decoder->zero_grad();
      const UnetPlan& stage = decoder->plan().stages[static_cast<size_t>(n - 1)];
      const DecoderExamples examples = decoder->prepare(c.inputs(side), n, c.draws(n, stage));
      const at::Tensor loss = decoder->loss(examples, n);
      const double expected = c.fixture.tensor(at + "loss").item<double>();
      const double error = std::abs(loss.item<double>() - expected);
      const double noise = c.fixture.tensor(at + "loss_noise").item<double>();
      INFO("loss " << expected << ", error " << error << ", noise " << noise);
      CHECK(error <= std::max(kLossTolerance * std::abs(expected), kNoiseSteps * noise));
      lenient += error > kLossTolerance * std::abs(expected) ? 1 : 0;
      ++steps;
      if (n > 1) {
        // The reference gives it encoded, but neither scaled nor in [-1, 1].
        const at::Tensor& given = examples.conditions.lowres_cond_img;
        const ImageRange range{decoder->plan().config.auto_normalize_img};
        const at::Tensor shown =
            stage.latent ? given / stage.latent->scale : range.unnormalize(given);
        expect_close(digest(shown), c.fixture.tensor(at + "lowres"), 1e-5, "low-resolution image");
      }
      loss.backward();
      check_gradients(c, decoder, n);
    }
  }
  expect_mostly_strict(lenient, steps);
}

void check_sampling(const char* folder, size_t cases) {
  const std::vector<std::string> paths = fixture_files(fixture_folder(folder), cases);
  size_t lenient = 0;
  for (const std::string& path : paths) {
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of_case(c);
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
    if (!sampling["stop_at_unet_number"].is_null())
      options.stop_at_unet = sampling["stop_at_unet_number"].get<int64_t>();
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
    expect_close(drawn, expected, std::max(kSampleTolerance, kSampleNoiseSteps * noise), "sample");
    const double error = (drawn - expected).abs().max().item<double>();
    lenient += error > kSampleTolerance * largest ? 1 : 0;
  }
  expect_mostly_strict(lenient, paths.size());
}

}  // namespace

TEST_CASE("Losses and gradients of random decoders equal the reference's", "[parity]") {
  check_training("decoder", 18);
}

TEST_CASE("Sampling loops of random decoders equal the reference's", "[parity]") {
  check_sampling("decoder", 18);
}

TEST_CASE("Losses and gradients of decoders behind VAEs equal the reference's", "[parity]") {
  check_training("latent", 6);
}

TEST_CASE("Sampling loops of decoders behind VAEs equal the reference's", "[parity]") {
  check_sampling("latent", 6);
}

TEST_CASE("A decoder behind VAEs has the names of the reference's state dict", "[parity]") {
  size_t with_vae = 0;
  for (const std::string& path : fixture_files(fixture_folder("latent"), 6)) {
    INFO(path);
    const Case c(path);
    const Decoder decoder = decoder_of_case(c);
    std::set<std::string> names;
    for (const auto& [name, tensor] : state_dict(*decoder)) {
      names.insert(name);
      with_vae += name.starts_with("vaes.") ? 1 : 0;
    }
    CHECK(names == c.fixture.json["names"].get<std::set<std::string>>());
  }
  CHECK(with_vae >= 12);
}

TEST_CASE("Latents train the first unet as the pictures they come from do, and no other", "[cpu]") {
  int64_t first = 0, later = 0;
  for (const std::string& path : fixture_files(fixture_folder("latent"), 6)) {
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of_case(c);
    const DecoderPlan& plan = decoder->plan();
    if (!plan.stages.front().latent) continue;
    DecoderInputs inputs = c.inputs(plan.stages.back().image_size);
    bool least_noise = false;
    const auto losses = [&] {
      std::vector<double> found;
      for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
        auto draws = c.draws(n, plan.stages[static_cast<size_t>(n - 1)]);
        if (least_noise) draws.times = at::zeros_like(draws.times);
        found.push_back(decoder->loss(inputs, n, draws).item<double>());
      }
      return found;
    };
    const std::vector<double> of_pictures = losses();
    const at::Tensor latents =
        decoder->encode(inputs.images, 1) / plan.stages.front().latent->scale;
    inputs.latents = latents;
    const std::vector<double> of_latents = losses();
    // The division and the multiplication by the scale round once each.
    CHECK(of_latents[0] == Approx(of_pictures[0]).epsilon(1e-4));
    ++first;
    for (size_t i = 1; i < of_latents.size(); ++i, ++later) CHECK(of_latents[i] == of_pictures[i]);
    {  // half precision is for the networks: neither way rounds the target
      const Autocast autocast(at::kCPU, MixedPrecision::bf16);
      CHECK(at::equal(decoder->encode(inputs.images, 1) / plan.stages.front().latent->scale,
                      latents));
      const double of_stored = losses()[0];
      inputs.latents = at::Tensor();
      CHECK(losses()[0] == Approx(of_stored).epsilon(1e-4));
    }
    // At the last time of some schedules nothing is left of the latents.
    least_noise = true;
    inputs.latents = latents;
    const double of_given = losses()[0];
    inputs.latents = 2 * latents;
    CHECK(losses()[0] != of_given);
    inputs.latents = latents.slice(3, 1);
    CHECK_THROWS_WITH(losses(), Catch::Contains("latents: expected ["));
  }
  CHECK(first >= 4);
  // Cases that were drawn afresh may have no stage behind one with latents.
  if (std::getenv("DALLE2_PARITY_DIR") == nullptr) CHECK(later >= 2);
}

TEST_CASE("A VAE is not trained by the decoder, whatever mode that is in", "[cpu]") {
  const Case c(fixture_files(fixture_folder("latent"), 6).front());
  Decoder decoder = decoder_of_case(c);
  decoder->train();
  int64_t stages = 0;
  for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
    VqganVae vae = decoder->vae(n);
    if (vae.is_empty()) continue;
    ++stages;
    std::vector<at::Tensor> before;
    for (const auto& buffer : vae->named_buffers()) before.push_back(buffer.value().clone());
    const int64_t side = decoder->plan().stages.back().image_size;
    decoder->forward(c.inputs(side), n, at::make_generator<at::CPUGeneratorImpl>(1)).backward();
    DecoderSampleOptions options;
    options.batch_size = 2;
    options.image_embeds = c.inputs(side).image_embeds;
    options.text_encodings = c.inputs(side).text_encodings;
    options.generator = at::make_generator<at::CPUGeneratorImpl>(1);
    decoder->sample(options);
    for (const auto& parameter : vae->parameters()) {
      CHECK_FALSE(parameter.requires_grad());
      CHECK_FALSE(parameter.grad().defined());
    }
    size_t number = 0;
    for (const auto& buffer : vae->named_buffers()) {
      INFO(buffer.key());
      CHECK(at::equal(buffer.value(), before[number++]));
    }
  }
  CHECK(stages >= 1);
}

// Random configurations in half precision against the reference under torch.autocast
// (tests/parity/make_precision.py).
namespace {

struct Half {
  MixedPrecision precision;
  std::string name;
  double scale;     ///< of the loss in the backward pass
  double rounding;  ///< relative
};

// A half has 8 or 11 bits, so each layer rounds visibly, and the LayerNorms take eps 1e-3. The
// fixture says how far the reference's own numbers move when every weight moves by one rounding.
// Our kernels round at other places, some dozens of times on the way.
constexpr double kHalfNoiseSteps = 20;
// For the sum over all parameters, where the errors of single ones even out.
constexpr double kTotalNoiseSteps = 8;

double total(const at::Tensor& per_parameter) {
  return per_parameter.to(at::kDouble).square().sum().sqrt().item<double>();
}

void check_gradients(const Case& c, Decoder& decoder, int64_t unet_number, const Half& half) {
  const std::string at = fmt::format("stage{}.{}.", unet_number, half.name);
  const at::Tensor rows = c.fixture.tensor(at + "grads").to(at::kDouble);
  const at::Tensor noise = c.fixture.tensor(at + "grad_noise").to(at::kDouble);
  const auto parameters = decoder->unet(unet_number)->named_parameters();
  REQUIRE(static_cast<int64_t>(parameters.size()) == rows.size(0));
  const double floor = half.rounding * rows.select(1, 0).max().item<double>();
  std::vector<double> errors;
  for (const auto& item : parameters) {
    const auto row = static_cast<int64_t>(errors.size());
    const at::Tensor& gradient = item.value().grad();
    const at::Tensor found = digest(gradient.defined() ? gradient / half.scale : at::zeros({1}));
    errors.push_back((found - rows[row]).norm().item<double>());
    // A gradient that cancels keeps the rounding of its terms, some as large as the largest
    // gradients, which weights that move do not show; a digest has sums over all entries.
    const double cancelled = floor * std::sqrt(static_cast<double>(item.value().numel()));
    INFO("gradient of unet " << unet_number << ": " << item.key() << ", norm "
                             << rows[row][0].item<double>() << ", error " << errors.back()
                             << ", noise " << noise[row].item<double>() << ", floor " << floor);
    CHECK(errors.back() <= kHalfNoiseSteps * noise[row].item<double>() + cancelled);
  }
  const double all = total(at::tensor(errors, at::kDouble));
  INFO("all gradients: error " << all << ", noise " << total(noise) << ", size "
                               << total(rows.select(1, 0)));
  CHECK(all <= kTotalNoiseSteps * total(noise) + floor);
}

/// @return whether the loss is another than in float32
bool check_step(const Case& c, Decoder& decoder, int64_t unet_number, const Half& half) {
  INFO("unet " << unet_number << " in " << half.name << " of " << c.config.dump());
  const std::string at = fmt::format("stage{}.", unet_number);
  const int64_t side =
      decoder->plan().stages.back().image_size + c.fixture.json["image_margin"].get<int64_t>();
  const UnetPlan& plan = decoder->plan().stages[static_cast<size_t>(unet_number - 1)];
  decoder->zero_grad();
  at::Tensor loss;
  {
    const Autocast autocast(at::kCPU, half.precision);
    loss = decoder->loss(c.inputs(side), unet_number, c.draws(unet_number, plan));
  }
  CHECK(loss.scalar_type() == at::kFloat);
  const double expected = c.fixture.tensor(at + half.name + ".loss").item<double>();
  const double noise = c.fixture.tensor(at + half.name + ".loss_noise").item<double>();
  const double error = std::abs(loss.item<double>() - expected);
  INFO("loss " << expected << ", error " << error << ", noise " << noise);
  CHECK(error <= kHalfNoiseSteps * noise + half.rounding * std::abs(expected));
  (loss * half.scale).backward();
  check_gradients(c, decoder, unet_number, half);
  return loss.item<float>() != c.fixture.tensor(at + "loss").item<float>();
}

}  // namespace

TEST_CASE("Losses and gradients in half precision are those of the reference's autocast",
          "[parity]") {
  std::map<MixedPrecision, int> compared, other_than_float;
  for (const std::string& path : fixture_files(fixture_folder("precision"), 8)) {
    if (path.find("/case_") == std::string::npos) continue;
    INFO(path);
    const Case c(path);
    Decoder decoder = decoder_of(c.config);
    decoder->train();
    for (int64_t n = 1; n <= decoder->num_unets(); ++n) {
      for (const Half& half : {Half{MixedPrecision::bf16, "bf16", 1, 0x1p-8},
                               Half{MixedPrecision::fp16, "fp16", 128, 0x1p-11}}) {
        // Absent where the reference's own numbers are too unstable.
        if (!c.fixture.has(fmt::format("stage{}.{}.loss", n, half.name))) continue;
        if (check_step(c, decoder, n, half)) ++other_than_float[half.precision];
        ++compared[half.precision];
      }
    }
  }
  // They really were computed in half precision; one may round to the same loss by chance.
  for (auto& [precision, count] : compared) CHECK(other_than_float[precision] >= count - 1);
  CHECK(compared[MixedPrecision::bf16] >= 4);
  CHECK(compared[MixedPrecision::fp16] >= 7);
}

}  // namespace dalle2::test
