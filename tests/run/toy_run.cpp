// SPDX-License-Identifier: MIT
#include "run/toy_run.h"

#include <nlohmann/json.hpp>

#include "base/stop_signal.h"
#include "model/random.h"

namespace dalle2::test {
namespace {

ModelPlan plan_of(const std::shared_ptr<ToyModel>& model, const ToyTrainConfig& config) {
  PartPlan part{.name = "", .prefix = "toy.", .network = model->network};
  part.options = part_options(config, 0);
  return {.model = model, .model_name = "toy", .parts = {std::move(part)}};
}

std::shared_ptr<ToyModel> make_model(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  return std::make_shared<ToyModel>("toy", std::make_shared<ToyNetwork>());
}

std::string json_of(const ToyConfig& config) {
  return nlohmann::json{{"toy", {{"steps_per_epoch", config.steps_per_epoch}}},
                        {"train", {{"lr", config.train.lr}}},
                        {"tracker", {{"data_path", config.tracker.data_path}}},
                        {"seed", config.seed}}
      .dump();
}

}  // namespace

ToyTrainer::ToyTrainer(std::shared_ptr<ToyModel> model,
                       const ToyTrainConfig& config,
                       const at::Device& device)
    : Trainer(plan_of(model, config), config, device), model_(std::move(model)) {}

/// Mean squared distance from the sum of a row's numbers.
at::Tensor ToyTrainer::loss(const at::Tensor& x) const {
  return (model_->network->to_q->forward(x) - x.sum(1, true)).square().mean();
}

at::Tensor ToyTrainer::step(const at::Tensor& x, const BatchShare& share) {
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

double ToyTrainer::evaluate(const at::Tensor& x) {
  const AveragesInPlace averages = averages_in_place();
  const auto loss_of = [&](const ChunkRange& range) {
    return loss(x.narrow(0, range.begin, range.length));
  };
  return part(1).evaluate(x.size(0), loss_of).item<double>();
}

std::vector<PositionField> ToyPosition::fields() {
  return {{"epoch", &epoch},
          {"samples_seen", &samples_seen},
          {"next_task", &next_task},
          {"best_loss", &best_loss}};
}

ToyRun::ToyRun(const ToyConfig& config)
    : TrainingRun({.session = {.tracker = config.tracker,
                               .train = config.train,
                               .seed = config.seed,
                               .process = {.quiet = config.quiet}},
                   .texts = {.kind = "toy", .raw_json = "{}", .full_json = json_of(config)},
                   .metrics = {{}},
                   .suspects = "odd numbers"},
                  std::make_unique<ToyPosition>(),
                  [&](const at::Device& device) {
                    return std::make_unique<ToyTrainer>(
                        make_model(config.seed), config.train, device);
                  }),
      config_(config),
      position_(position_as<ToyPosition>()),
      trainer_(trainer_as<ToyTrainer>()) {}

void ToyRun::after_step() {
  const bool due = position_.iteration % config_.save_every_n_steps == 0;
  if (due && !checkpoints_.is_amid_skips()) checkpoints_.save(/*is_best=*/false);
}

void ToyRun::end_epoch() {
  if (position_.next_task == "val") validate();
  position_.next_task = "save";
  checkpoints_.save(/*is_best=*/false);
}

/// [8, 4]
at::Tensor ToyRun::drawn(const char* purpose, int64_t epoch, int64_t step) const {
  return at::randn({8, 4}, session_.generator(purpose, epoch, step), at::device(session_.device()));
}

bool ToyRun::read_group() {
  if (position_.loader.row == config_.steps_per_epoch) return false;
  const int64_t number = position_.epoch * config_.steps_per_epoch + position_.loader.row;
  batch_ = drawn("train", position_.epoch, position_.loader.row);
  if (while_reading) from_outside([&] { while_reading(number); });
  if (before_step) before_step(number, batch_);
  return true;
}

std::optional<int64_t> ToyRun::accumulate() {
  trainer_.step(batch_);
  return batch_.size(0);
}

LogRecord ToyRun::step_values(double samples_per_second) {
  return {{"Samples per second", samples_per_second}};
}

void ToyRun::validate() {
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

}  // namespace dalle2::test
