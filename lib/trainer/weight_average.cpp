// SPDX-License-Identifier: MIT
#include "trainer/weight_average.h"

#include <torch/torch.h>

#include <utility>

#include "base/log.h"
#include "checkpoint/module_state.h"
#include "model/lora.h"
#include "trainer/averaged_network.h"
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

/// The options of ema-pytorch's kind.
EmaOptions ema_options(const AveragesConfig& config) {
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

std::string part_prefix(size_t index, const AverageLayout& layout) {
  return layout.many_parts ? std::to_string(index) + "." : "";
}

/// The entries of the model with `network` in it, below `prefix`: the averaged ones of `network`,
/// and the rest of the model.
StateDict model_with(const torch::nn::Module& network,
                     const FlatParameters& averaged,
                     const AverageLayout& layout,
                     const std::string& prefix) {
  StateDict all;
  if (layout.rest) {
    for (auto& [name, tensor] : layout.rest()) all.emplace_back(prefix + name, tensor);
  }
  for (auto& [name, tensor] : averaged_state(network, averaged)) {
    all.emplace_back(prefix + layout.network_prefix + name, tensor);
  }
  return all;
}

void add_counters(Dict& all, const std::string& prefix, bool initted, int64_t step) {
  all.set(prefix + "initted", at::full({}, initted, at::kBool));
  all.set(prefix + "step", at::full({}, step, at::kLong));
}

void append(Dict& all, const StateDict& part) {
  for (const auto& [name, tensor] : part) all.items.emplace_back(Value(name), Value(tensor));
}

/// ema_pytorch keeps a bool; a file of other hands may have a number.
bool truth_of(const Cursor& entry) {
  const Value& value = entry.value();
  const bool is_bool =
      value.is_bool() || (value.is_tensor() && entry.as_tensor().scalar_type() == at::kBool);
  return is_bool ? entry.as_bool() : entry.as_double() != 0.0;
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

void EmaPytorchAverage::write(Value& all,
                              size_t index,
                              const torch::nn::Module& live,
                              const AverageLayout& layout) const {
  const std::string prefix = part_prefix(index, layout);
  Dict& entries = all.as_dict();
  add_counters(entries, prefix, ema.initted(), ema.step());
  append(entries, model_with(live, parameters_, layout, prefix + "online_model."));
  append(entries, model_with(*network_, parameters_, layout, prefix + "ema_model."));
}

void EmaPytorchAverage::read(const Cursor& all,
                             size_t index,
                             const AverageLayout& layout,
                             bool strict) {
  const std::string prefix = part_prefix(index, layout);
  load_averaged_state(*network_,
                      parameters_,
                      all.as_state_dict(),
                      prefix + "ema_model." + layout.network_prefix,
                      strict,
                      all);
  ema.set_counters(truth_of(all.at(prefix + "initted")), all.at(prefix + "step").as_int());
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
  // Buffers have no average, so they are the original's. Then the parameters.
  load_state_dict(*network, state_dict(original_));
  auto parameters = network->named_parameters();
  for (size_t i = 0; i < names_.size(); ++i) {
    parameters[names_[i]].copy_(ema.shadow_params()[i]);
  }
  return network;
}

void DiffusersAverage::write(Value& all,
                             size_t /*index: entries are in order*/,
                             const torch::nn::Module& /*live: has no part in it*/,
                             const AverageLayout& layout) const {
  Dict out = ema_model_state(ema);
  List names;
  for (const std::string& name : names_) names.items.emplace_back(name);
  out.set("parameter_names", std::move(names));
  if (!layout.many_parts) {
    all = std::move(out);
  } else {
    std::get<List>(all.data).items.emplace_back(std::move(out));
  }
}

void DiffusersAverage::read(const Cursor& all,
                            size_t index,
                            const AverageLayout& layout,
                            bool /*strict: names have no part in it*/) {
  const Cursor saved = layout.many_parts ? all.at(index) : all;
  if (saved.is_none()) return begin_anew();
  const EmaModelOptions ours = ema.options();
  load_ema_model_state(saved, ema);
  if (ema.options() != ours) {
    log_info("ckpt",
             "{}: averaged with other options (decay {}); goes on with /train/ema (decay {})",
             saved.where(),
             ema.options().decay,
             ours.decay);
  }
  ema.set_state(ours, ema.optimization_step(), std::nullopt);
}

const char* average_key(EmaKind kind, const AverageLayout& layout) {
  return kind == EmaKind::diffusers ? layout.diffusers_key : layout.ema_key;
}

Value empty_averages(EmaKind kind, const AverageLayout& layout) {
  if (kind == EmaKind::diffusers && layout.many_parts) return List{};
  return to_dict(StateDict{});
}

void write_untrained_average(EmaKind kind, Value& all, size_t index, const AverageLayout& layout) {
  if (kind == EmaKind::diffusers) {
    std::get<List>(all.data).items.emplace_back();
  } else {
    add_counters(all.as_dict(), part_prefix(index, layout), /*initted=*/false, /*step=*/0);
  }
}

StateDict averaged_model(const WeightAverage& average,
                         const FlatParameters& parameters,
                         const AverageLayout& layout) {
  return model_with(*average.network(), parameters, layout, "");
}

std::unique_ptr<WeightAverage> make_average(const torch::nn::Module& original,
                                            const NetworkMaker& make_network,
                                            const FlatParameters& online,
                                            const AveragesConfig& config) {
  if (config.ema.kind == EmaKind::diffusers) {
    return std::make_unique<DiffusersAverage>(original, make_network, online, config.ema);
  }
  return std::make_unique<EmaPytorchAverage>(original, make_network, online, ema_options(config));
}

}  // namespace dalle2
