// SPDX-License-Identifier: MIT
#include "trainer/weight_average.h"

#include <torch/torch.h>

#include <utility>

#include "base/log.h"
#include "checkpoint/module_state.h"
#include "model/lora.h"
#include "trainer/ema_model_state.h"

namespace dalle2 {
namespace {

/// A network like `original`, for reading. Its parameters that are averaged are its own; what is
/// frozen lies in the memory of the original.
std::shared_ptr<torch::nn::Module> network_like(const torch::nn::Module& original,
                                                const NetworkMaker& make_network,
                                                const std::vector<std::string>& averaged,
                                                const at::Device& device) {
  auto network = make_network();
  attach_lora_like(original, *network);
  share_parameters(original, averaged, *network);
  network->to(device);
  network->eval();
  for (const at::Tensor& parameter : network->parameters()) {
    parameter.set_requires_grad(false);
  }
  return network;
}

EmaModelOptions ema_model_options(const EmaConfig& config) {
  EmaModelOptions options;
  options.decay = config.decay;
  options.min_decay = config.min_decay;
  options.update_after_step = config.update_after_step;
  options.use_ema_warmup = config.use_ema_warmup;
  options.inv_gamma = config.inv_gamma;
  options.power = config.power;
  options.foreach = config.foreach;
  return options;
}

std::vector<at::Tensor> tensors_of(const FlatParameters& flat) {
  std::vector<at::Tensor> tensors;
  for (const FlatEntry& entry : flat.parameters()) {
    tensors.push_back(entry.tensor);
  }
  return tensors;
}

}  // namespace

EmaPytorchAverage::EmaPytorchAverage(const torch::nn::Module& original,
                                     const NetworkMaker& make_network,
                                     const FlatParameters& online,
                                     const EmaOptions& options)
    : network_(network_like(original, make_network, online.names(), online.values().device())),
      parameters_(*network_, online.names()),
      ema(online, parameters_, options) {}

void EmaPytorchAverage::begin_anew() {
  ema.copy_from_online();
  ema.set_counters(/*initted=*/false, /*step=*/0);
}

DiffusersAverage::DiffusersAverage(const torch::nn::Module& original,
                                   NetworkMaker make_network,
                                   const FlatParameters& online,
                                   const EmaConfig& config)
    : original_(original),
      make_network_(std::move(make_network)),
      names_(online.names()),
      online_(tensors_of(online)),
      device_(online.values().device()),
      offload_(config.offload && !device_.is_cpu()),
      ema(online_, ema_model_options(config)) {
  if (offload_) {
    ema.to(at::kCPU);
    ema.pin_memory();
  }
}

void DiffusersAverage::update() {
  if (offload_) {
    ema.to(device_);
  }
  ema.step(online_);
  if (offload_) {
    ema.to(at::kCPU);
  }
}

std::shared_ptr<torch::nn::Module> DiffusersAverage::network() const {
  const torch::NoGradGuard no_grad;
  const auto network = network_like(original_, make_network_, names_, device_);
  // Buffers have no average: those of the original. Then the parameters.
  load_state_dict(*network, state_dict(original_));
  auto parameters = network->named_parameters();
  for (size_t i = 0; i < names_.size(); ++i) {
    parameters[names_[i]].copy_(ema.shadow_params()[i]);
  }
  return network;
}

Dict DiffusersAverage::state() const {
  Dict out = ema_model_state(ema);
  List names;
  for (const std::string& name : names_) {
    names.items.emplace_back(name);
  }
  out.set("parameter_names", std::move(names));
  return out;
}

void DiffusersAverage::load_state(const Cursor& saved) {
  const EmaModelOptions ours = ema.options();
  load_ema_model_state(saved, ema);
  if (ema.options() != ours) {
    log_info("ckpt",
             "{}: averaged with other options (decay {}); /train/ema holds from now on (decay {})",
             saved.where(),
             ema.options().decay,
             ours.decay);
  }
  ema.set_state(ours, ema.optimization_step(), std::nullopt);
}

std::unique_ptr<WeightAverage> make_average(const torch::nn::Module& original,
                                            const NetworkMaker& make_network,
                                            const FlatParameters& online,
                                            const EmaConfig& kind,
                                            const EmaOptions& options) {
  if (kind.kind == EmaKind::diffusers) {
    return std::make_unique<DiffusersAverage>(original, make_network, online, kind);
  }
  return std::make_unique<EmaPytorchAverage>(original, make_network, online, options);
}

}  // namespace dalle2
