// SPDX-License-Identifier: MIT
// The runs that tests/parity/make_trainer.py recorded, and ways to play them.
#pragma once

#include <torch/torch.h>

#include "config/decoder/decoder_run_config.h"
#include "model/random.h"
#include "support/fixture.h"
#include "trainer/decoder_trainer.h"
#include "trainer/state_bits.h"
#include "trainer/trainer_probe.h"

namespace dalle2::test {

/// What the recorded runs of decoders and of priors have in common.
class RecordedRun {
 public:
  explicit RecordedRun(const std::string& fixture) : data_(load_fixture(fixture)) {}

  const Fixture& data() const { return data_; }
  std::string checkpoint_path() const {
    return data_.path.substr(0, data_.path.rfind('.')) + ".pth";
  }
  const nlohmann::json& event(size_t i) const { return data_.json.at("events").at(i); }
  size_t num_events() const { return data_.json.at("events").size(); }
  size_t save_behind() const { return data_.json.at("save_behind").get<size_t>(); }

 protected:
  at::Tensor tensor(size_t i, const std::string& name) const {
    return data_.tensor(std::to_string(i) + "." + name);
  }
  std::optional<int64_t> max_batch_size(size_t i) const {
    const nlohmann::json& size = event(i).at("max_batch_size");
    return size.is_null() ? std::nullopt : std::optional<int64_t>(size.get<int64_t>());
  }

  Fixture data_;
};

class TrainerFixture : public RecordedRun {
 public:
  /// @param name "cascade" (two unets) or "masked" (the first is not trained)
  explicit TrainerFixture(const std::string& name)
      : RecordedRun("trainer/" + name),
        config_(parse_decoder_config(data_.json.at("config").dump(), name + ".json", {})) {}

  DecoderTrainConfig train_config() const { return config_.config.train; }

  /// A trainer whose unets have the weights of the recorded run's start.
  std::unique_ptr<DecoderTrainer> trainer() const { return trainer(train_config()); }
  std::unique_ptr<DecoderTrainer> trainer(const DecoderTrainConfig& train,
                                          const at::Device& device = at::kCPU) const {
    Decoder decoder(config_.plan);
    for (int64_t number = 1; number <= decoder->num_unets(); ++number)
      fill_parameters(*decoder->unet(number));
    return std::make_unique<DecoderTrainer>(decoder, train, device);
  }

  DecoderInputs inputs(size_t i) const {
    return {tensor(i, "images"), tensor(i, "image_embeds"), {}};
  }

  DecoderStepNoise draws(size_t i) const {
    DecoderStepNoise draws;
    draws.times = tensor(i, "times");
    draws.noise = tensor(i, "noise");
    draws.image_keep_mask = tensor(i, "image_keep");
    draws.text_keep_mask = tensor(i, "text_keep");
    draws.lowres.blur = tensor(i, "blur").item<bool>();
    draws.lowres.blur_sigma = 0.6;
    draws.lowres.blur_kernel_size = 3;
    return draws;
  }

  /// Does what the reference did at event `i`. @return the loss
  double play(DecoderTrainer& trainer, size_t i) const {
    const int64_t unet = event(i).at("unet").get<int64_t>();
    TrainerProbe::set_max_batch_size(trainer, max_batch_size(i));
    const double loss = trainer.step(inputs(i), unet, draws(i)).item<double>();
    TrainerProbe::set_max_batch_size(trainer, std::nullopt);
    if (event(i).at("update").get<bool>()) trainer.update(unet);
    return loss;
  }

 private:
  LoadedDecoderConfig config_;
};

/// The recorded run of two unets.
inline const TrainerFixture& cascade() {
  static const TrainerFixture fixture("cascade");
  return fixture;
}

/// A batch of any size, a pure function of `seed`.
inline DecoderInputs drawn_inputs(int64_t batch, int64_t seed) {
  at::Generator generator = make_generator({seed, "inputs"}, at::kCPU);
  return {at::rand({batch, 3, 16, 16}, generator), at::randn({batch, 8}, generator), {}};
}

/// An update with a picture that is NaN.
inline void bad_step(DecoderTrainer& trainer, int64_t unet, int64_t step = 0) {
  DecoderInputs inputs = drawn_inputs(2, 1);
  inputs.images[1].fill_(NAN);
  trainer.step(inputs, unet, make_generator({0, "bad", 0, step}, at::kCPU));
  trainer.update(unet);
}

/// Steps `begin` to `end` of a run that trains its unets by turns; data and noise follow from the
/// step's number.
inline void train(DecoderTrainer& trainer, int64_t begin, int64_t end, int64_t batch = 2) {
  for (int64_t step = begin; step < end; ++step) {
    const int64_t unet = 1 + step % trainer.num_unets();
    if (trainer.is_trained(unet)) {
      trainer.step(
          drawn_inputs(batch, step), unet, make_generator({0, "train", 0, step}, at::kCPU));
      trainer.update(unet);
    }
  }
}

}  // namespace dalle2::test
