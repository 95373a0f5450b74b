// SPDX-License-Identifier: MIT
// The average of a network's weights, of either kind.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/ema_config.h"
#include "optim/ema.h"
#include "optim/ema_model.h"
#include "optim/finite.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

/// Makes a network of the class and the options of the one that is averaged, with any weights.
using NetworkMaker = std::function<std::shared_ptr<torch::nn::Module>()>;

/// What a training step and a sampler need to know of an average.
class WeightAverage {
 public:
  virtual ~WeightAverage() = default;
  /// To be called behind every optimizer step.
  virtual void update() = 0;
  /// Decay of the next averaging.
  virtual double decay() const = 0;
  /// Makes the average a copy of the weights and forgets the steps.
  virtual void begin_anew() = 0;
  /// A network in eval mode with the averaged weights, on the device of the original and of its
  /// class. Read it only: it may be the average itself or a copy of it.
  virtual std::shared_ptr<torch::nn::Module> network() const = 0;
  /// No average is NaN or infinite. Waits for the device.
  virtual bool is_finite() const = 0;
};

/// The reference's: a network of its own that follows, buffers too; what is frozen it shares.
class EmaPytorchAverage : public WeightAverage {
 public:
  EmaPytorchAverage(const torch::nn::Module& original,
                    const NetworkMaker& make_network,
                    const FlatParameters& online,
                    const EmaOptions& options);
  void update() override { ema.update(); }
  double decay() const override { return ema.decay(); }
  void begin_anew() override;
  std::shared_ptr<torch::nn::Module> network() const override { return network_; }
  bool is_finite() const override { return all_finite(parameters_.values()); }

 private:
  std::shared_ptr<torch::nn::Module> network_;
  FlatParameters parameters_;

 public:
  Ema ema;
};

/// EMAModel of diffusers: the averages of the parameters alone, which may lie in host memory
/// between steps. The original has to outlive it.
class DiffusersAverage : public WeightAverage {
 public:
  DiffusersAverage(const torch::nn::Module& original,
                   NetworkMaker make_network,
                   const FlatParameters& online,
                   const EmaConfig& config);
  void update() override;
  double decay() const override { return ema.get_decay(ema.optimization_step() + 1); }
  void begin_anew() override { ema.begin_anew(online_); }
  std::shared_ptr<torch::nn::Module> network() const override;
  bool is_finite() const override { return all_finite(ema.shadow_params()); }

  /// ema_model_state() and, beside upstream's keys, `parameter_names`: which average is whose.
  Dict state() const;
  /// Takes up the averages and the step count; the options stay those of the config.
  /// @throws DataError
  void load_state(const Cursor& saved);

 private:
  const torch::nn::Module& original_;
  NetworkMaker make_network_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> online_;
  at::Device device_;
  bool offload_;

 public:
  EmaModel ema;
};

/// The options of the first kind, as a `train` section has them.
template <class TrainConfig>
EmaOptions ema_options(const TrainConfig& config) {
  EmaOptions options;
  options.beta = config.ema_beta;
  options.update_after_step = config.ema_update_after_step;
  options.update_every = config.ema_update_every;
  options.inv_gamma = config.ema_inv_gamma;
  options.power = config.ema_power;
  options.min_value = config.ema_min_value;
  options.update_model_with_ema_every = config.update_model_with_ema_every;
  return options;
}

/// Of the kind that the config names. @param original has to outlive it
std::unique_ptr<WeightAverage> make_average(const torch::nn::Module& original,
                                            const NetworkMaker& make_network,
                                            const FlatParameters& online,
                                            const EmaConfig& kind,
                                            const EmaOptions& options);

}  // namespace dalle2
