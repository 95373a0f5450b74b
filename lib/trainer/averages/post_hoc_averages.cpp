// SPDX-License-Identifier: MIT
#include "trainer/averages/post_hoc_averages.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"
#include "optim/flat_parameters.h"

namespace dalle2 {
namespace {

const char* const kKey = "post_hoc_ema";

/// The averages that one unet has in the files.
struct UnetSnapshots {
  std::vector<PowerProfile> profiles;  // in the order of the files and, in a file, of the averages
  std::set<std::pair<int64_t, double>> seen;
  int64_t last_step = 0;
};

/// An average of a file: its weights are read in a second pass.
struct Entry {
  int64_t unet;
  size_t index;  // in UnetSnapshots::profiles
};

/// What the files hold, without the weights.
struct Survey {
  std::map<int64_t, UnetSnapshots> unets;  // by number
  std::vector<std::vector<Entry>> entries_of_file;
  std::string newest;
  int64_t newest_step = -1;
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

Survey survey_files(const std::vector<std::string>& paths) {
  Survey survey;
  for (const std::string& path : paths) {
    const Value root = read_checkpoint(path);
    const Cursor unets = averages_of(root, path);
    std::vector<Entry> entries;
    for (size_t i = 0; i < unets.size(); ++i) {
      if (unets.at(i).is_none()) continue;
      const auto number = static_cast<int64_t>(i) + 1;
      UnetSnapshots& unet = survey.unets[number];
      const int64_t step = unets.at(i).at("step").as_int();
      if (step < 1) throw DataError("{}: the averages name no step", unets.at(i).where());
      const Cursor averages = unets.at(i).at("averages");
      for (size_t a = 0; a < averages.size(); ++a) {
        const double gamma = gamma_of_sigma(averages.at(a).at("sigma").as_double());
        if (!unet.seen.emplace(step, gamma).second) {
          throw DataError(
              "{}: the averages of step {} are also in an earlier file. Give each file of the run "
              "only once.",
              path,
              step);
        }
        entries.push_back({number, unet.profiles.size()});
        unet.profiles.push_back({step, gamma});
      }
      unet.last_step = std::max(unet.last_step, step);
      if (step > survey.newest_step) {
        survey.newest_step = step;
        survey.newest = path;
      }
    }
    survey.entries_of_file.push_back(std::move(entries));
  }
  if (survey.unets.empty()) throw DataError("no file holds averages of a unet");
  return survey;
}

using Sums = std::map<std::string, at::Tensor>;  // name of the model's tensor: float64

/// Adds a file's averages, weighted.
void add_file(const std::string& path,
              const std::vector<Entry>& entries,
              const std::map<int64_t, PostHocWeights>& weights,
              bool is_first,
              Sums& sums) {
  const Value root = read_checkpoint(path);
  const Cursor unets = averages_of(root, path);
  size_t next = 0;
  std::set<std::string> met;
  for (size_t i = 0; i < unets.size(); ++i) {
    if (unets.at(i).is_none()) continue;
    const std::string prefix = unets.at(i).at("prefix").as_string();  // of the model's names
    const Cursor averages = unets.at(i).at("averages");
    for (size_t a = 0; a < averages.size(); ++a) {
      const Entry& entry = entries[next++];
      const double weight = weights.at(entry.unet).weights[entry.index];
      const Cursor named = averages.at(a).at("weights");
      for (const auto& [name, tensor] : named.as_state_dict()) {
        const std::string full = prefix + name;
        met.insert(full);
        const auto sum = sums.find(full);
        if (is_first && sum == sums.end()) {
          sums.emplace(full, tensor.to(at::kCPU, at::kDouble) * weight);
        } else if (sum == sums.end() || sum->second.sizes() != tensor.sizes()) {
          throw DataError(
              "{}: {} does not belong to the model of the other files", named.where(), name);
        } else {
          sum->second.add_(tensor.to(at::kCPU, at::kDouble), weight);
        }
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
Dict model_file_of(const std::string& newest, const Sums& sums) {
  const Value root = read_checkpoint(newest);
  const Cursor file(root, newest);
  StateDict model = file.at("model").as_state_dict();
  for (auto& [name, tensor] : model) {  // a train state has the live weights too
    if (const auto sum = sums.find(name); sum != sums.end()) tensor = sum->second.to(at::kFloat);
  }
  for (const auto& [name, sum] : sums) {
    if (find_tensor(model, name) == nullptr) model.emplace_back(name, sum.to(at::kFloat));
  }
  if (const auto lora = file.find("lora")) {
    model = merged_lora(model, lora_info_of(*lora).alpha, newest);
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

bool PostHocAverages::has(const std::string& name) const {
  const std::vector<FlatEntry> all = online_.entries();
  return std::any_of(
      all.begin(), all.end(), [&](const FlatEntry& entry) { return entry.name == name; });
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
  const Survey survey = survey_files(paths);
  std::map<int64_t, PostHocWeights> weights;
  PostHocResult result;
  for (const auto& [number, unet] : survey.unets) {
    const int64_t step = choice.step.value_or(unet.last_step);
    if (step < 1 || step > unet.last_step) {
      throw ConfigError("--step: expected 1 to {}, the last step of unet {} in the files; got {}",
                        unet.last_step,
                        number,
                        step);
    }
    weights[number] = post_hoc_weights(unet.profiles, {step, gamma});
    result.missed = std::max(result.missed, weights[number].missed);
    if (number == survey.unets.begin()->first) {
      result.step = step;
      result.snapshots = unet.profiles.size();
    }
  }
  Sums sums;
  for (size_t i = 0; i < paths.size(); ++i) {
    add_file(paths[i], survey.entries_of_file[i], weights, /*is_first=*/i == 0, sums);
  }
  result.model_file = model_file_of(survey.newest, sums);
  return result;
}

}  // namespace dalle2
