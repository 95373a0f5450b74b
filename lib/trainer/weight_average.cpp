// SPDX-License-Identifier: MIT
#include "trainer/weight_average.h"

#include <torch/torch.h>

#include <utility>

#include "base/error.h"
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

void WeightAverage::hold() {
  if (holds_++ == 0) put_together();
}

void WeightAverage::let_go() {
  if (--holds_ == 0) forget_whole();
}

EmaPytorchAverage::EmaPytorchAverage(const torch::nn::Module& original,
                                     const NetworkMaker& make_network,
                                     const FlatParameters& online,
                                     const EmaOptions& options)
    : original_(original),
      make_network_(make_network),
      online_(online),
      whole_(make_whole()),
      ema(online, whole_->parameters, options) {}

std::unique_ptr<EmaPytorchAverage::Whole> EmaPytorchAverage::make_whole() const {
  const std::vector<std::string> names = online_.names();
  auto network = network_like(original_, make_network_, names, online_.values().device());
  FlatParameters parameters(*network, names);
  auto made = std::make_unique<Whole>(Whole{std::move(network), std::move(parameters), {}});
  const auto own = made->network->named_buffers();
  for (const auto& item : original_.named_buffers()) {
    if (item.value().is_floating_point()) continue;
    made->other_buffers.emplace_back(item.value(), *own.find(item.key()));
  }
  return made;
}

void EmaPytorchAverage::Whole::copy_other_buffers() const {
  for (const auto& [theirs, ours] : other_buffers) ours.copy_(theirs);
}

void EmaPytorchAverage::update() {
  ema.update();
  if (whole_) whole_->copy_other_buffers();
}

const EmaPytorchAverage::Whole& EmaPytorchAverage::whole() const {
  D2_CHECK(whole_ != nullptr, "an average that is spread over the ranks has to be held");
  return *whole_;
}

void EmaPytorchAverage::shard(const RankShards& shards) {
  shards_ = &shards;
  ema.keep_slice(shards.own());
  whole_.reset();
  begin_anew();
}

void EmaPytorchAverage::put_together() {
  if (shards_ == nullptr) return;
  whole_ = make_whole();
  const at::Tensor& values = whole_->parameters.values();
  shards_->own().of(values).copy_(ema.values());
  shards_->share(values, "averages");
  whole_->copy_other_buffers();
}

void EmaPytorchAverage::forget_whole() {
  if (shards_ != nullptr) whole_.reset();
}

void EmaPytorchAverage::begin_anew() {
  ema.copy_from_online();
  if (whole_) whole_->copy_other_buffers();
  ema.set_counters(/*initted=*/false, /*step=*/0);
}

void EmaPytorchAverage::write(Value& all,
                              size_t index,
                              const torch::nn::Module& live,
                              const AverageLayout& layout) const {
  const std::string prefix = part_prefix(index, layout);
  Dict& entries = all.as_dict();
  add_counters(entries, prefix, ema.initted(), ema.step());
  append(entries, model_with(live, whole().parameters, layout, prefix + "online_model."));
  append(entries, model_with(*whole().network, whole().parameters, layout, prefix + "ema_model."));
}

void EmaPytorchAverage::read(const Cursor& all,
                             size_t index,
                             const AverageLayout& layout,
                             bool strict) {
  const std::string prefix = part_prefix(index, layout);
  if (shards_ != nullptr) whole_ = make_whole();
  load_averaged_state(*whole().network,
                      whole().parameters,
                      all.as_state_dict(),
                      prefix + "ema_model." + layout.network_prefix,
                      strict,
                      all);
  if (shards_ != nullptr) ema.values().copy_(shards_->own().of(whole().parameters.values()));
  forget_whole();
  ema.set_counters(truth_of(all.at(prefix + "initted")), all.at(prefix + "step").as_int());
}

DiffusersAverage::DiffusersAverage(const torch::nn::Module& original,
                                   NetworkMaker make_network,
                                   const FlatParameters& online,
                                   const EmaConfig& config)
    : original_(original),
      make_network_(std::move(make_network)),
      online_(online),
      names_(online.names()),
      followed_(tensors_of(online)),
      device_(online.values().device()),
      offload_(config.offload && !device_.is_cpu()),
      ema(followed_, ema_model_options(config)) {
  keep_on_host();
}

void DiffusersAverage::keep_on_host() {
  if (!offload_) return;
  ema.to(at::kCPU);
  ema.pin_memory();
}

void DiffusersAverage::shard(const RankShards& shards) {
  shards_ = &shards;
  for (size_t i = 0; i < online_.parameters().size(); ++i) {
    const FlatEntry& entry = online_.parameters()[i];
    const FlatSlice common = shards.own().overlap({entry.offset, entry.offset + entry.numel});
    if (common.length() == 0) continue;
    pieces_.push_back({i,
                       {common.begin - entry.offset, common.end - entry.offset},
                       {common.begin - shards.own().begin, common.end - shards.own().begin}});
  }
  followed_ = pieces_of(tensors_of(online_));
  ema = EmaModel(followed_, ema.options());
  keep_on_host();
}

/// @param parameters one a parameter @return what of them lies in the slice: views
std::vector<at::Tensor> DiffusersAverage::pieces_of(
    const std::vector<at::Tensor>& parameters) const {
  std::vector<at::Tensor> pieces;
  for (const Piece& piece : pieces_) {
    const at::Tensor& parameter = parameters[piece.parameter];
    // What needs no gradient is copied and not averaged.
    pieces.push_back(piece.of_parameter.of(parameter.detach().flatten())
                         .set_requires_grad(parameter.requires_grad()));
  }
  return pieces;
}

/// The averages of whole parameters, from all ranks. On the device
std::vector<at::Tensor> DiffusersAverage::gathered() const {
  const at::Tensor own = at::zeros({shards_->own().length()}, online_.values().options());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    pieces_[i].of_slice.of(own).copy_(ema.shadow_params()[i]);
  }
  const at::Tensor all = shards_->gather(own, "averages");
  std::vector<at::Tensor> shadows;
  for (const FlatEntry& entry : online_.parameters()) {
    shadows.push_back(all.narrow(0, entry.offset, entry.numel).view(entry.tensor.sizes()));
  }
  return shadows;
}

void DiffusersAverage::put_together() {
  const torch::NoGradGuard no_grad;
  auto shadows = shards_ == nullptr ? ema.shadow_params() : gathered();
  auto network = make_averaged(shadows);
  held_ = Held{std::move(shadows), std::move(network)};
}

void DiffusersAverage::update() {
  if (offload_) {
    ema.to(device_);
  }
  ema.step(followed_);
  if (offload_) {
    ema.to(at::kCPU);
  }
}

std::shared_ptr<torch::nn::Module> DiffusersAverage::network() const {
  if (held_) return held_->network;
  D2_CHECK(shards_ == nullptr, "an average that is spread over the ranks has to be held");
  return make_averaged(ema.shadow_params());
}

std::shared_ptr<torch::nn::Module> DiffusersAverage::make_averaged(
    const std::vector<at::Tensor>& shadows) const {
  const torch::NoGradGuard no_grad;
  const auto network = network_like(original_, make_network_, names_, device_);
  // Buffers have no average, so they are the original's. Then the parameters.
  load_state_dict(*network, state_dict(original_));
  auto parameters = network->named_parameters();
  for (size_t i = 0; i < names_.size(); ++i) {
    parameters[names_[i]].copy_(shadows[i]);
  }
  return network;
}

void DiffusersAverage::write(Value& all,
                             size_t /*index: entries are in order*/,
                             const torch::nn::Module& /*live: has no part in it*/,
                             const AverageLayout& layout) const {
  D2_CHECK(held_ || shards_ == nullptr, "an average that is spread over the ranks has to be held");
  Dict out = ema_model_state(ema, shards_ == nullptr ? ema.shadow_params() : held_->shadows);
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
  if (shards_ == nullptr) {
    load_ema_model_state(saved, ema);
  } else {
    EmaModel whole(tensors_of(online_), ours);
    if (offload_) whole.to(at::kCPU);
    load_ema_model_state(saved, whole);
    ema.set_state(whole.options(), whole.optimization_step(), pieces_of(whole.shadow_params()));
  }
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
