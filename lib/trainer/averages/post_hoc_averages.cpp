// SPDX-License-Identifier: MIT
#include "trainer/averages/post_hoc_averages.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "checkpoint/post_hoc.h"

namespace dalle2 {

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

void PostHocAverages::count() {
  for (Average& average : averages_) average.rule.count();
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
  for (const FlatEntry& entry : online_.entries()) {
    weights.emplace_back(entry.name, entry.of(values));
  }
  return weights;
}

bool PostHocAverages::is_finite() const {
  return std::all_of(averages_.begin(), averages_.end(), [](const Average& average) {
    return all_finite(average.values);
  });
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
  for (size_t a = 0; same && a < averages_.size(); ++a) {
    same = averages.at(a).at("sigma").as_double() == averages_[a].sigma;
  }
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
