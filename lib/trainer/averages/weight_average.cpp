// SPDX-License-Identifier: MIT
#include "trainer/averages/weight_average.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "model/lora.h"
#include "optim/flat_parameters.h"

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

}  // namespace

WeightAverage::WeightAverage(const torch::nn::Module& original,
                             NetworkMaker make_network,
                             const FlatParameters& online,
                             const AveragesConfig& config)
    : original_(original),
      make_network_(std::move(make_network)),
      online_(online),
      config_(config),
      rule_(make_average_rule(config)),
      offload_(is_diffusers() && config.ema.offload && !online.values().is_cpu()),
      kept_{0, is_diffusers() ? online.parameter_span() : online.values().numel()} {
  make_storage();
}

/// Places the average, a copy of the weights, for what is kept.
void WeightAverage::make_storage() {
  const torch::NoGradGuard no_grad;
  whole_ = is_resident() ? make_whole() : nullptr;
  at::TensorOptions options = online_.values().options();
  if (offload_) options = options.device(at::kCPU).pinned_memory(true);
  average_ = whole_ ? kept_.of(whole_->parameters.values()) : at::empty({kept_.length()}, options);
  copied_.clear();
  for (const FlatEntry& entry : online_.parameters()) {
    const FlatSlice own = kept_.overlap({entry.offset, entry.offset + entry.numel});
    if (!is_diffusers() || entry.tensor.requires_grad() || own.length() == 0) continue;
    copied_.push_back({own.begin - kept_.begin, own.end - kept_.begin});
  }
  begin_anew();
}

std::unique_ptr<WeightAverage::Whole> WeightAverage::make_whole() const {
  const std::vector<std::string> names = online_.names();
  auto network = network_like(original_, make_network_, names, online_.values().device());
  FlatParameters parameters(*network, names);
  auto made = std::make_unique<Whole>(Whole{std::move(network), std::move(parameters), {}});
  const auto own = made->network->named_buffers();
  for (const auto& item : original_.named_buffers()) {
    if (item.value().is_floating_point() && !is_diffusers()) continue;
    made->other_buffers.emplace_back(item.value(), *own.find(item.key()));
  }
  return made;
}

void WeightAverage::Whole::copy_other_buffers(const at::Tensor& skipped) const {
  for (const auto& [theirs, ours] : other_buffers)
    ours.copy_(skipped.defined() ? at::where(skipped != 0, ours, theirs) : theirs);
}

void WeightAverage::shard(const RankShards& shards) {
  shards_ = &shards;
  kept_ = kept_.overlap(shards.own());
  make_storage();
}

/// The averaged network, where it is not the average itself.
std::unique_ptr<WeightAverage::Whole> WeightAverage::put_together() const {
  const torch::NoGradGuard no_grad;
  auto made = make_whole();
  const at::Tensor& values = made->parameters.values();
  kept_.of(values).copy_(average_);
  if (shards_ != nullptr) shards_->share(values, "averages");
  made->copy_other_buffers();
  return made;
}

void WeightAverage::hold() {
  if (holds_++ == 0 && !is_resident()) whole_ = put_together();
}

void WeightAverage::let_go() {
  if (--holds_ == 0 && !is_resident()) whole_.reset();
}

const WeightAverage::Whole& WeightAverage::whole() const {
  D2_CHECK(whole_ != nullptr, "an average that is spread over the ranks has to be held");
  return *whole_;
}

std::shared_ptr<torch::nn::Module> WeightAverage::network() const {
  if (!whole_ && shards_ == nullptr) return put_together()->network;
  const torch::NoGradGuard no_grad;
  // Those of diffusers' kind are the original's at any time.
  if (is_diffusers()) whole().copy_other_buffers();
  return whole().network;
}

std::optional<double> WeightAverage::share_of_next() const {
  return is_resident() ? rule_->share_of_next() : std::nullopt;
}

void WeightAverage::update(const at::Tensor& skipped, bool has_parameters) {
  const torch::NoGradGuard no_grad;
  if (has_parameters) {
    const FlatSlice buffers = {online_.parameter_span(), kept_.end};
    rule_->update(buffers.of(average_), buffers.of(online_.values()), skipped);
    whole_->copy_other_buffers(skipped);
    return;
  }
  const at::Tensor weights = kept_.of(online_.values());
  // To the device and back in the order of its stream: the host waits for neither copy.
  const at::Tensor average = average_.to(weights.device(), /*non_blocking=*/true);
  rule_->update(average, weights, skipped);
  for (const FlatSlice& stretch : copied_) stretch.of(average).copy_(stretch.of(weights));
  if (offload_) {
    average_.copy_(average, /*non_blocking=*/true);
    if (!arrival_) arrival_.emplace(weights.device().type());
    arrival_->record(
        c10::impl::VirtualGuardImpl(weights.device().type()).getStream(weights.device()));
  }
  if (whole_) whole_->copy_other_buffers(skipped);
}

void WeightAverage::begin_anew() {
  const torch::NoGradGuard no_grad;
  average_.copy_(kept_.of(online_.values()));
  if (whole_) whole_->copy_other_buffers();
  rule_->set_counters(/*initted=*/false, /*step=*/0);
}

const at::Tensor& WeightAverage::values() const {
  if (arrival_) arrival_->synchronize();
  arrival_.reset();
  return average_;
}

bool WeightAverage::is_finite() const {
  return all_finite(values());
}

}  // namespace dalle2
