// SPDX-License-Identifier: MIT
// The average of a unet's weights, of either kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/train_config.h"
#include "model/lora.h"
#include "model/unet.h"
#include "optim/ema.h"
#include "optim/ema_model.h"
#include "optim/finite.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

/// What a training step and a sampler need to know of an average.
class UnetAverage {
 public:
  virtual ~UnetAverage() = default;
  /// To be called behind every optimizer step.
  virtual void update() = 0;
  /// Decay of the next averaging.
  virtual double decay() const = 0;
  /// Makes the average a copy of the weights and forgets the steps.
  virtual void begin_anew() = 0;
  /// A network in eval mode with the averaged weights, on the device of the unet. Read it only: it
  /// may be the average itself or a copy of it.
  virtual std::shared_ptr<UnetImpl> network() const = 0;
  /// No average is NaN or infinite. Waits for the device.
  virtual bool is_finite() const = 0;
};

/// The reference's: a network of its own that follows, buffers too; what is frozen it shares.
class EmaPytorchAverage : public UnetAverage {
 public:
  EmaPytorchAverage(const UnetImpl& unet, const FlatParameters& online, const EmaOptions& options);
  void update() override { ema.update(); }
  double decay() const override { return ema.decay(); }
  void begin_anew() override;
  std::shared_ptr<UnetImpl> network() const override { return network_; }
  bool is_finite() const override { return all_finite(parameters_.values()); }

 private:
  std::shared_ptr<UnetImpl> network_;
  FlatParameters parameters_;

 public:
  Ema ema;
};

/// EMAModel of diffusers: the averages of the parameters alone, which may lie in host memory
/// between steps. The unet has to outlive it.
class DiffusersAverage : public UnetAverage {
 public:
  DiffusersAverage(const UnetImpl& unet, const FlatParameters& online, const EmaConfig& config);
  void update() override;
  double decay() const override { return ema.get_decay(ema.optimization_step() + 1); }
  void begin_anew() override { ema.begin_anew(online_); }
  std::shared_ptr<UnetImpl> network() const override;
  bool is_finite() const override { return all_finite(ema.shadow_params()); }

  /// ema_model_state() and, beside upstream's keys, `parameter_names`: which average is whose.
  Dict state() const;
  /// Takes up the averages and the step count; the options stay those of the config.
  /// @throws DataError
  void load_state(const Cursor& saved);

 private:
  const UnetImpl& unet_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> online_;
  at::Device device_;
  bool offload_;

 public:
  EmaModel ema;
};

/// Of the kind that the config names.
std::unique_ptr<UnetAverage> make_average(const UnetImpl& unet,
                                          const FlatParameters& online,
                                          const DecoderTrainConfig& config);

}  // namespace dalle2
