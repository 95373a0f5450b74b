// SPDX-License-Identifier: MIT
#include "trainer/averages/post_hoc_averages.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"
#include "optim/flat_parameters.h"

namespace dalle2 {
namespace {

const char* const kKey = "post_hoc_ema";

/// An average of one unet in a file.
struct Snapshot {
  int64_t unet = 0;    // number
  std::string prefix;  // of the unet's names in the model
  PowerProfile profile;
  Cursor named;         // tensors
  double weight = 0.0;  // in the combination
};

Cursor averages_of(const Value& root, const std::string& path) {
  const Cursor file(root, path);
  if (!file.value().is_dict() || !file.has(kKey) || !file.has("model")) {
    throw DataError(
        "{}: no file of averages: expected an entry '{}'.\n"
        "  A run with /train/post_hoc_ema/save_every_n_steps writes them to data_path/averages and "
        "to its checkpoints.",
        path,
        kKey);
  }
  return file.at(kKey);
}

/// @param files that live as long as the result
std::vector<std::vector<Snapshot>> snapshots_of(const std::vector<Value>& files,
                                                const std::vector<std::string>& paths) {
  std::vector<std::vector<Snapshot>> snapshots(files.size());
  std::set<std::tuple<int64_t, int64_t, double>> seen;
  for (size_t f = 0; f < files.size(); ++f) {
    const Cursor unets = averages_of(files[f], paths[f]);
    for (size_t i = 0; i < unets.size(); ++i) {
      const Cursor saved = unets.at(i);
      if (saved.is_none()) continue;
      const auto number = static_cast<int64_t>(i) + 1;
      const int64_t step = saved.at("step").as_int();
      if (step < 1) throw DataError("{}: the averages name no step", saved.where());
      const Cursor averages = saved.at("averages");
      for (size_t a = 0; a < averages.size(); ++a) {
        const double gamma = gamma_of_sigma(averages.at(a).at("sigma").as_double());
        if (!seen.emplace(number, step, gamma).second) {
          throw DataError(
              "{}: the averages of step {} are also in an earlier file. Give each file of the run "
              "only once.",
              paths[f],
              step);
        }
        const std::string prefix = saved.at("prefix").as_string();
        snapshots[f].push_back({number, prefix, {step, gamma}, averages.at(a).at("weights")});
      }
    }
  }
  if (seen.empty()) throw DataError("no file holds averages of a unet");
  return snapshots;
}

using Sums = std::map<std::string, at::Tensor>;  // name of the model's tensor: float64

/// Adds a file's averages, weighted.
void add_file(const std::string& path,
              const std::vector<Snapshot>& snapshots,
              bool is_first,
              Sums& sums) {
  std::set<std::string> met;
  for (const Snapshot& each : snapshots) {
    for (const auto& [name, tensor] : each.named.as_state_dict()) {
      const std::string full = each.prefix + name;
      met.insert(full);
      const auto sum = sums.find(full);
      if (is_first && sum == sums.end()) {
        sums.emplace(full, tensor.to(at::kCPU, at::kDouble) * each.weight);
      } else if (sum == sums.end() || sum->second.sizes() != tensor.sizes()) {
        throw DataError(
            "{}: {} does not belong to the model of the other files", each.named.where(), name);
      } else {
        sum->second.add_(tensor.to(at::kCPU, at::kDouble), each.weight);
      }
    }
  }
  if (met.size() != sums.size()) {
    throw DataError(
        "{}: {} averaged tensors, the other files have {}: they belong to different models",
        path,
        met.size(),
        sums.size());
  }
}

/// The newest file's entries with the combined averages in its model.
Dict model_file_of(const Cursor& file, const Sums& sums) {
  StateDict model = file.at("model").as_state_dict();
  for (auto& [name, tensor] : model) {  // a train state has the live weights too
    if (const auto sum = sums.find(name); sum != sums.end()) tensor = sum->second.to(at::kFloat);
  }
  for (const auto& [name, sum] : sums) {
    if (find_tensor(model, name) == nullptr) model.emplace_back(name, sum.to(at::kFloat));
  }
  if (const auto lora = file.find("lora")) {
    model = merged_lora(model, lora_info_of(*lora).alpha, file.where());
  }
  return with_entries(model, file, {"version", "config"});
}

}  // namespace

PostHocAverages::PostHocAverages(const FlatParameters& online, const PostHocEmaConfig& config)
    : online_(online), kept_{0, online.values().numel()} {
  for (const double sigma : config.sigmas) {
    averages_.push_back({PowerRule(sigma), online.values().detach().clone()});
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
    one.set("sigma", average.rule.sigma());
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
    same = averages.at(a).at("sigma").as_double() == averages_[a].rule.sigma();
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

PostHocResult combine_post_hoc(const std::vector<std::string>& paths, const PostHocChoice& choice) {
  const double gamma = gamma_of_sigma(choice.sigma);
  std::vector<Value> files;  // mapped: what is not in use takes no memory
  for (const std::string& path : paths) files.push_back(read_checkpoint(path));
  std::vector<std::vector<Snapshot>> snapshots = snapshots_of(files, paths);
  std::map<int64_t, std::vector<Snapshot*>> of_unets;  // by number, in the order of the files
  size_t newest = 0;
  int64_t newest_step = -1;
  for (size_t f = 0; f < files.size(); ++f) {
    for (Snapshot& each : snapshots[f]) {
      of_unets[each.unet].push_back(&each);
      if (each.profile.step <= newest_step) continue;
      newest = f;
      newest_step = each.profile.step;
    }
  }
  PostHocResult result;
  for (const auto& [number, own] : of_unets) {
    std::vector<PowerProfile> profiles;
    int64_t last_step = 0;
    for (const Snapshot* each : own) {
      profiles.push_back(each->profile);
      last_step = std::max(last_step, each->profile.step);
    }
    const int64_t step = choice.step.value_or(last_step);
    if (step < 1 || step > last_step) {
      throw ConfigError("--step: expected 1 to {}, the last step of unet {} in the files; got {}",
                        last_step,
                        number,
                        step);
    }
    const PostHocWeights weights = post_hoc_weights(profiles, {step, gamma});
    for (size_t i = 0; i < own.size(); ++i) own[i]->weight = weights.weights[i];
    result.missed = std::max(result.missed, weights.missed);
    if (number == of_unets.begin()->first) {
      result.step = step;
      result.snapshots = own.size();
    }
  }
  Sums sums;
  for (size_t f = 0; f < files.size(); ++f) add_file(paths[f], snapshots[f], f == 0, sums);
  result.model_file = model_file_of(Cursor(files[newest], paths[newest]), sums);
  return result;
}

}  // namespace dalle2
