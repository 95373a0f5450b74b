// SPDX-License-Identifier: MIT
// The smallest kind of run there can be, one linear layer, through all that kinds share. It shows
// how a kind is added (docs/contributing.md).
#pragma once

#include <torch/torch.h>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "config/shared/train_options.h"
#include "model/layers.h"
#include "run/device_of_tests.h"
#include "run/loop/training_run.h"
#include "run/one_part_model.h"
#include "trainer/trainer.h"

namespace dalle2::test {

struct ToyTrainConfig : OptimizerConfig<Single>, SharedTrainConfig {
  ToyTrainConfig() {
    lr = 5e-2;
    device = device_of_tests();
    ema_update_after_step = 0;
    ema_update_every = 1;
    lora.targets = {"to_q"};
  }
};

struct ToyConfig {
  ToyTrainConfig train;
  TrackerConfig tracker;
  int64_t seed = 0;
  int64_t steps_per_epoch = 5;
  int64_t save_every_n_steps = 3;
  bool quiet = true;
};

/// [B, 4] -> [B, 1]
struct ToyNetwork : torch::nn::Module {
  ToyNetwork() : to_q(register_module("to_q", make_linear(4, 1))) {}
  std::shared_ptr<LinearLayerImpl> to_q;
};

using ToyModel = OnePartModel<ToyNetwork>;

class ToyTrainer : public Trainer {
 public:
  ToyTrainer(std::shared_ptr<ToyModel> model,
             const ToyTrainConfig& config,
             const at::Device& device);
  /// Forward and backward. @param x [B, 4] @return [] the loss
  at::Tensor step(const at::Tensor& x, const BatchShare& share = {});
  /// The averaged loss.
  double evaluate(const at::Tensor& x);
  const ToyModel& toy() const { return *model_; }

 private:
  at::Tensor loss(const at::Tensor& x) const;

  std::shared_ptr<ToyModel> model_;
};

struct ToyPosition : RunPosition {
  double best_loss = 1e9;

  std::vector<PositionField> fields() override;
  void reset() override { *this = {}; }
  std::string description() const override { return "epoch " + std::to_string(epoch); }
};

class ToyRun : public TrainingRun {
 public:
  /// @param config has to outlive the run
  explicit ToyRun(const ToyConfig& config);

  void open() override {}

  /// Called with the number of the step (over all epochs) before each; may spoil the batch.
  std::function<void(int64_t step, at::Tensor& batch)> before_step;
  /// Called for each batch, as what reads it from a disk or a network; may throw.
  std::function<void(int64_t step)> while_reading;
  /// Called between the batches of a validation.
  std::function<void()> in_validation;
  int64_t epochs_opened = 0, epochs_closed = 0;

  ToyTrainer& trainer() { return trainer_; }
  RunCheckpoints& checkpoints() { return checkpoints_; }
  RunSession& session() { return session_; }
  const ToyPosition& position() const { return position_; }

 private:
  void open_epoch() override { ++epochs_opened; }
  void close_epoch(bool /*whole*/) override { ++epochs_closed; }
  bool read_group() override;
  std::optional<int64_t> accumulate() override;
  void advance() override { ++position_.loader.row; }
  void after_step() override;
  void end_epoch() override;
  void end_epochs() override { checkpoints_.save(/*is_best=*/false); }
  at::Tensor drawn(const char* purpose, int64_t epoch, int64_t step) const;
  LogRecord step_values(double samples_per_second) override;
  int64_t samples_per_epoch() const override { return config_.steps_per_epoch; }
  void validate();

  const ToyConfig& config_;
  ToyPosition& position_;
  ToyTrainer& trainer_;
  at::Tensor batch_;  // [8, 4] of the next update
};

}  // namespace dalle2::test
