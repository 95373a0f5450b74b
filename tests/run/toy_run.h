// SPDX-License-Identifier: MIT
// The smallest kind of run there can be, one linear layer, through all that kinds share. It shows
// how a kind is added (docs/contributing.md).
#pragma once

#include "config/shared/train_options.h"
#include "model/layers.h"
#include "model/random.h"
#include "run/device_of_tests.h"
#include "run/loop/training_run.h"
#include "trainer/trainer.h"

namespace dalle2::test {

/// A model of one network.
template <class Network>
struct OnePartModel : torch::nn::Module {
  OnePartModel(std::string part, std::shared_ptr<Network> made)
      : network(register_module(std::move(part), std::move(made))) {}

  std::shared_ptr<Network> network;
};

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

  std::string json() const {
    return nlohmann::json{{"toy", {{"steps_per_epoch", steps_per_epoch}}},
                          {"train", {{"lr", train.lr}}},
                          {"tracker", {{"data_path", tracker.data_path}}},
                          {"seed", seed}}
        .dump();
  }
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
             const at::Device& device)
      : Trainer(plan_of(model, config), config, device), model_(std::move(model)) {}

  /// Forward and backward. @param x [B, 4] @return [] the loss
  at::Tensor step(const at::Tensor& x, const BatchShare& share = {}) {
    TrainedPart& trained = part(1);
    const at::Tensor total = trained.run_passes(x.size(0), share, [&](const Pass& pass) {
      const at::Tensor of_pass = trained.forward(
          pass, [&] { return loss(x.narrow(0, pass.range.begin, pass.range.length)); });
      if (pass.is_last) trained.begin_exchange();
      trained.backward(pass, of_pass);
      return of_pass.detach();
    });
    if (share.is_last) trained.finish_exchange();
    add_to(trained.loss, total);
    return total;
  }
  /// The averaged loss.
  double evaluate(const at::Tensor& x) {
    const AveragesInPlace averages = averages_in_place();
    const auto loss_of = [&](const ChunkRange& range) {
      return loss(x.narrow(0, range.begin, range.length));
    };
    return part(1).evaluate(x.size(0), loss_of).item<double>();
  }
  const ToyModel& toy() const { return *model_; }

 private:
  static ModelPlan plan_of(const std::shared_ptr<ToyModel>& model, const ToyTrainConfig& config) {
    PartPlan part{.name = "", .prefix = "toy.", .network = model->network};
    part.options = part_options(config, 0);
    return {.model = model, .model_name = "toy", .parts = {std::move(part)}};
  }
  /// Mean squared distance from the sum of a row's numbers.
  at::Tensor loss(const at::Tensor& x) const {
    return (model_->network->to_q->forward(x) - x.sum(1, true)).square().mean();
  }

  std::shared_ptr<ToyModel> model_;
};

struct ToyPosition : RunPosition {
  double best_loss = 1e9;

  std::vector<PositionField> fields() override {
    return {{"epoch", &epoch},
            {"samples_seen", &samples_seen},
            {"next_task", &next_task},
            {"best_loss", &best_loss}};
  }
  void reset() override { *this = {}; }
  std::string description() const override { return "epoch " + std::to_string(epoch); }
};

class ToyRun : public TrainingRun {
 public:
  /// @param config has to outlive the run
  explicit ToyRun(const ToyConfig& config)
      : TrainingRun({.session = {.tracker = config.tracker,
                                 .train = config.train,
                                 .seed = config.seed,
                                 .process = {.quiet = config.quiet}},
                     .texts = {.kind = "toy", .raw_json = "{}", .full_json = config.json()},
                     .metrics = {{}},
                     .suspects = "odd numbers"},
                    std::make_unique<ToyPosition>(),
                    [&](const at::Device& device) {
                      torch::manual_seed(static_cast<uint64_t>(config.seed));
                      return std::make_unique<ToyTrainer>(
                          std::make_shared<ToyModel>("toy", std::make_shared<ToyNetwork>()),
                          config.train,
                          device);
                    }),
        config_(config),
        position_(position_as<ToyPosition>()),
        trainer_(trainer_as<ToyTrainer>()) {}

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
  bool read_group() override {
    if (position_.loader.row == config_.steps_per_epoch) return false;
    const int64_t number = position_.epoch * config_.steps_per_epoch + position_.loader.row;
    batch_ = drawn("train", position_.epoch, position_.loader.row);
    if (while_reading) from_outside([&] { while_reading(number); });
    if (before_step) before_step(number, batch_);
    return true;
  }
  std::optional<int64_t> accumulate() override {
    trainer_.step(batch_);
    return batch_.size(0);
  }
  void advance() override { ++position_.loader.row; }
  void after_step() override {
    const bool due = position_.iteration % config_.save_every_n_steps == 0;
    if (due && !checkpoints_.is_amid_skips()) checkpoints_.save(/*is_best=*/false);
  }
  void end_epoch() override {
    if (position_.next_task == "val") validate();
    position_.next_task = "save";
    checkpoints_.save(/*is_best=*/false);
  }
  void end_epochs() override { checkpoints_.save(/*is_best=*/false); }
  /// [8, 4]
  at::Tensor drawn(const char* purpose, int64_t epoch, int64_t step) const {
    const at::Generator random = session_.generator(purpose, epoch, step);
    return at::randn({8, 4}, random, at::device(session_.device()));
  }
  LogRecord step_values(double samples_per_second) override {
    return {{"Samples per second", samples_per_second}};
  }
  int64_t samples_per_epoch() const override { return config_.steps_per_epoch; }
  void validate() {
    double sum = 0;
    for (int64_t i = 0; i < 2; ++i) {
      if (in_validation) in_validation();
      session_.throw_if_stop_asked();
      sum += trainer_.evaluate(drawn("validate", 0, i));
    }
    session_.tracker().log({{"Validation Loss", sum / 2}}, trainer_.steps());
    if (!(sum / 2 < position_.best_loss)) return;
    position_.best_loss = sum / 2;
    checkpoints_.save(/*is_best=*/true, /*is_latest=*/false);
  }

  const ToyConfig& config_;
  ToyPosition& position_;
  ToyTrainer& trainer_;
  at::Tensor batch_;  // [8, 4] of the next update
};

}  // namespace dalle2::test
