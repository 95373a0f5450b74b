// SPDX-License-Identifier: MIT
// The runs that tests/parity/make_prior_trainer.py recorded, and ways to play them.
#pragma once

#include "diffusion/prior_fixture.h"
#include "trainer/prior_trainer.h"
#include "trainer/trainer_fixture.h"

namespace dalle2::test {

inline PriorTrainConfig prior_train_config(const nlohmann::json& section) {
  ReadFindings findings;
  PriorTrainConfig config;
  Reader(findings).read_struct(Json::parse(section.dump()), "/train", config);
  findings.faults.throw_if_any("fixture.json");
  return config;
}

class PriorTrainerFixture : public RecordedRun {
 public:
  /// @param name "adamw" (every option) or "adam" (the defaults, without decay)
  explicit PriorTrainerFixture(const std::string& name)
      : RecordedRun("prior_trainer/" + name), train_(prior_train_config(data_.json.at("train"))) {}

  const PriorTrainConfig& train_config() const { return train_; }

  /// A trainer whose prior has the weights of the recorded run's start.
  std::unique_ptr<PriorTrainer> trainer() const { return trainer(train_); }
  std::unique_ptr<PriorTrainer> trainer(const PriorTrainConfig& train,
                                        const at::Device& device = at::kCPU) const {
    return std::make_unique<PriorTrainer>(
        prior_of(data_.json.at("prior"), train.loss_plan()), train, device);
  }

  PriorInputs inputs(size_t i) const {
    return {tensor(i, "image_embeds"), {tensor(i, "text_embeds"), tensor(i, "text_encodings")}};
  }
  PriorStepNoise draws(size_t i) const {
    PriorStepNoise draws;
    draws.times = tensor(i, "times");
    draws.noise = tensor(i, "noise");
    draws.text_keep_mask = tensor(i, "text_keep");
    draws.image_keep_mask = tensor(i, "image_keep");
    return draws;
  }
  /// The texts that the recorded samples are of.
  TextEmbedding texts() const {
    const TextEmbedding all = inputs(num_events() - 1).text;
    const int64_t count = data_.json.at("texts").get<int64_t>();
    return {all.embeds.narrow(0, 0, count), all.encodings.narrow(0, 0, count)};
  }

  /// Does what the reference did at event `i`. @return the loss
  double play(PriorTrainer& trainer, size_t i) const {
    TrainerProbe::set_max_batch_size(trainer, max_batch_size(i));
    const double loss = trainer.step(inputs(i), draws(i)).item<double>();
    TrainerProbe::set_max_batch_size(trainer, std::nullopt);
    if (event(i).at("update").get<bool>()) trainer.update();
    return loss;
  }

 private:
  PriorTrainConfig train_;
};

/// A batch of any size, a pure function of `seed`.
inline PriorInputs drawn_prior_inputs(int64_t batch, int64_t seed) {
  at::Generator generator = make_generator({seed, "inputs"}, at::kCPU);
  return {at::randn({batch, 8}, generator),
          {at::randn({batch, 8}, generator), at::randn({batch, 3, 8}, generator)}};
}

/// Steps `begin` to `end` of a run; data and noise follow from the step's number.
inline void train(PriorTrainer& trainer, int64_t begin, int64_t end, int64_t batch = 3) {
  for (int64_t step = begin; step < end; ++step) {
    trainer.step(drawn_prior_inputs(batch, step), make_generator({0, "train", 0, step}, at::kCPU));
    trainer.update();
  }
}

}  // namespace dalle2::test
