// SPDX-License-Identifier: MIT
#include "trainer/averages/weight_average.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/post_hoc.h"

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

PostHocAverages::PostHocAverages(const FlatParameters& online, const PostHocEmaConfig& config)
    : online_(online), kept_{0, online.values().numel()} {
  for (const double sigma : config.sigmas) {
    averages_.push_back(
        {sigma, PowerRule(gamma_of_sigma(sigma)), online.values().detach().clone()});
  }
}

void PostHocAverages::update(const at::Tensor& skipped) {
  for (const Average& average : averages_)
    average.rule.update(average.values, kept_.of(online_.values()), skipped);
}

void PostHocAverages::begin_anew() {
  const torch::NoGradGuard no_grad;
  for (Average& average : averages_) {
    average.values.copy_(kept_.of(online_.values()));
    average.rule.set_counters(/*initted=*/false, /*step=*/0);
  }
}

void PostHocAverages::shard(const RankShards& shards) {
  shards_ = &shards;
  kept_ = shards.own();
  for (Average& average : averages_) average.values = kept_.of(average.values).clone();
  begin_anew();
}

/// @param values [n] laid out as the online weights; undefined: no weights
StateDict PostHocAverages::named(const at::Tensor& values) const {
  StateDict weights;
  if (!values.defined()) return weights;
  for (const FlatEntry& entry : online_.entries())
    weights.emplace_back(entry.name, entry.of(values));
  return weights;
}

bool PostHocAverages::is_finite() const {
  return std::ranges::all_of(averages_,
                             [](const Average& average) { return all_finite(average.values); });
}

Dict PostHocAverages::state(const std::string& prefix) const {
  List averages;
  for (const Average& average : averages_) {
    Dict one;
    one.set("sigma", average.sigma);
    const at::Tensor whole =
        shards_ == nullptr
            ? average.values
            : shards_->gather_to_file(average.values, online_.values().numel(), "averages");
    one.set("weights", to_dict(named(whole)));
    averages.items.emplace_back(std::move(one));
  }
  Dict out;
  out.set("step", averages_.front().rule.step());
  out.set("averages", std::move(averages));
  out.set("prefix", prefix);
  return out;
}

void PostHocAverages::load_state(const Cursor& saved) {
  const torch::NoGradGuard no_grad;
  const Cursor averages = saved.at("averages");
  bool same = averages.size() == averages_.size();
  for (size_t a = 0; same && a < averages_.size(); ++a)
    same = averages.at(a).at("sigma").as_double() == averages_[a].sigma;
  if (!same) {
    throw DataError(
        "{}: the averages have other widths than /train/post_hoc_ema/sigmas.\n  Give the widths "
        "that the run began with.",
        averages.where());
  }
  for (size_t a = 0; a < averages_.size(); ++a) {
    const Cursor weights = averages.at(a).at("weights");
    for (const FlatEntry& entry : online_.entries()) {
      const Cursor theirs = weights.at(entry.name);
      if (theirs.as_tensor().sizes() != entry.tensor.sizes()) {
        throw DataError("{}: expected {}, got {}",
                        theirs.where(),
                        c10::str(entry.tensor.sizes()),
                        c10::str(theirs.as_tensor().sizes()));
      }
      copy_into_slice(
          averages_[a].values, kept_, entry.offset, entry.flattened(theirs.as_tensor()));
    }
    averages_[a].rule.set_counters(/*initted=*/false, saved.at("step").as_int());
  }
}

}  // namespace dalle2
