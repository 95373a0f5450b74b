// SPDX-License-Identifier: MIT
// Random configurations in half precision against the reference under torch.autocast
// (tests/parity/make_precision.py).
#include <cmath>
#include <map>

#include "diffusion/decoder_case.h"
#include "optim/precision.h"

namespace dalle2::test {
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
