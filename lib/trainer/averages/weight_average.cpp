// SPDX-License-Identifier: MIT
#include "trainer/averages/weight_average.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {

WeightAverage::WeightAverage(torch::nn::Module& network,
                             const FlatParameters& online,
                             const AveragesConfig& config)
    : network_(network),
      online_(online),
      config_(config),
      rule_(make_average_rule(config)),
      offload_(is_diffusers() && config.ema.offload && !online.values().is_cpu()),
      kept_{0, is_diffusers() ? online.parameter_span() : online.values().numel()} {
  // Those of diffusers' kind are the network's at any time.
  for (const at::Tensor& buffer : is_diffusers() ? std::vector<at::Tensor>() : network.buffers()) {
    if (!buffer.is_floating_point()) other_buffers_.emplace_back(buffer, buffer.clone());
  }
  make_storage();
}

/// Places the average, a copy of the weights, for what is kept.
void WeightAverage::make_storage() {
  const torch::NoGradGuard no_grad;
  at::TensorOptions options = online_.values().options();
  if (offload_) options = options.device(at::kCPU).pinned_memory(true);
  average_ = at::empty({kept_.length()}, options);
  set_whole(is_resident() ? average_ : at::Tensor());
  copied_.clear();
  for (const FlatEntry& entry : online_.parameters()) {
    const FlatSlice own = kept_.overlap({entry.offset, entry.offset + entry.numel});
    if (!is_diffusers() || entry.tensor.requires_grad() || own.length() == 0) continue;
    copied_.push_back({own.begin - kept_.begin, own.end - kept_.begin});
  }
  begin_anew();
}

/// @param whole [n], laid out as the online weights; undefined: there is none
void WeightAverage::set_whole(at::Tensor whole) const {
  places_.clear();
  whole_ = std::move(whole);
  if (!whole_.defined()) return;
  for (const FlatEntry& entry : is_diffusers() ? online_.parameters() : online_.entries())
    places_.push_back({entry.tensor, entry.of(online_.values()), entry.of(whole_)});
  for (const auto& [theirs, ours] : other_buffers_)
    places_.push_back({theirs, theirs.detach(), ours});
}

void WeightAverage::copy_other_buffers(const at::Tensor& skipped) const {
  for (const auto& [theirs, ours] : other_buffers_)
    ours.copy_(skipped.defined() ? at::where(skipped != 0, ours, theirs) : theirs);
}

void WeightAverage::shard(const RankShards& shards) {
  shards_ = &shards;
  kept_ = kept_.overlap(shards.own());
  make_storage();
}

at::Tensor WeightAverage::put_together() const {
  at::Tensor whole = at::zeros_like(online_.values());
  kept_.of(whole).copy_(average_);
  if (shards_ != nullptr) shards_->share(whole, "averages");
  return whole;
}

WeightAverage::Held::Held(const WeightAverage& average) : average_(average) {
  const torch::NoGradGuard no_grad;
  if (!average.whole_.defined()) average.set_whole(average.put_together());
  ++average.holds_;
}

WeightAverage::Held::~Held() {
  if (--average_.holds_ == 0 && !average_.is_resident()) average_.set_whole({});
}

const WeightAverage& WeightAverage::checked_held() const {
  D2_CHECK(shards_ == nullptr || whole_.defined(),
           "an average that is spread over the ranks has to be held");
  return *this;
}

/// Lets the tensors of the network have other memory. They stay what they are in all else.
void WeightAverage::put(at::Tensor Place::*memory) const {
  for (const Place& place : places_)
    place.tensor.unsafeGetTensorImpl()->shallow_copy_from((place.*memory).getIntrusivePtr());
}

WeightAverage::InPlace::InPlace(const WeightAverage& average) : Held(average.checked_held()) {
  if (average.in_place_++ == 0) average.put(&Place::averaged);
}

WeightAverage::InPlace::~InPlace() {
  if (--average_.in_place_ == 0) average_.put(&Place::live);
}

std::optional<double> WeightAverage::share_of_next() const {
  return is_resident() ? rule_->share_of_next() : std::nullopt;
}

void WeightAverage::update(const at::Tensor& skipped, bool has_parameters) {
  const torch::NoGradGuard no_grad;
  if (has_parameters) {
    const FlatSlice buffers = {online_.parameter_span(), kept_.end};
    rule_->update(buffers.of(average_), buffers.of(online_.values()), skipped);
    copy_other_buffers(skipped);
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
  copy_other_buffers(skipped);
}

void WeightAverage::begin_anew() {
  const torch::NoGradGuard no_grad;
  average_.copy_(kept_.of(online_.values()));
  copy_other_buffers();
  rule_->set_counters(/*initted=*/false, /*step=*/0);
}

const at::Tensor& WeightAverage::values() const {
  if (arrival_) arrival_->synchronize();
  arrival_.reset();
  return average_;
}

}  // namespace dalle2
