// SPDX-License-Identifier: MIT
#include "checkpoint/post_hoc.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"

namespace dalle2 {
namespace {

constexpr const char* kKey = "post_hoc_ema";

double variance(double gamma) {
  return (gamma + 1.0) / ((gamma + 2.0) * (gamma + 2.0) * (gamma + 3.0));
}

/// Integral of the product of two profiles over time, both of integral 1.
double inner_product(const PowerProfile& a, const PowerProfile& b) {
  const PowerProfile& sooner = a.step < b.step ? a : b;
  const PowerProfile& later = a.step < b.step ? b : a;
  const double ratio = static_cast<double>(sooner.step) / static_cast<double>(later.step);
  return (a.gamma + 1.0) * (b.gamma + 1.0) * std::pow(ratio, later.gamma) /
         ((a.gamma + b.gamma + 1.0) * static_cast<double>(later.step));
}

struct Snapshot {
  size_t file = 0;
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

/// In the order of the files. @param files that live as long as the result
std::vector<Snapshot> snapshots_of(const std::vector<Value>& files,
                                   const std::vector<std::string>& paths) {
  std::vector<Snapshot> snapshots;
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
        snapshots.push_back({f, number, prefix, {step, gamma}, averages.at(a).at("weights")});
      }
    }
  }
  if (snapshots.empty()) throw DataError("no file holds averages of a unet");
  return snapshots;
}

/// Weighs the averages of a unet. @return the step that is made, and what is missed
std::pair<int64_t, double> weigh(const std::vector<Snapshot*>& own, const PostHocChoice& choice) {
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
                      own.front()->unet,
                      step);
  }
  const PostHocWeights made = post_hoc_weights(profiles, {step, gamma_of_sigma(choice.sigma)});
  for (size_t i = 0; i < own.size(); ++i) own[i]->weight = made.weights[i];
  return {step, made.missed};
}

using Sums = std::map<std::string, at::Tensor>;  // name of the model's tensor: float64

void add_file(const std::string& path,
              size_t file,
              const std::vector<Snapshot>& snapshots,
              Sums& sums) {
  std::set<std::string> met;
  for (const Snapshot& each : snapshots) {
    if (each.file != file) continue;
    for (const auto& [name, tensor] : each.named.as_state_dict()) {
      const std::string full = each.prefix + name;
      met.insert(full);
      const auto sum = sums.find(full);
      if (file == 0 && sum == sums.end()) {
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

double gamma_of_sigma(double sigma) {
  if (!(sigma > 0.0 && sigma <= kWidestSigma)) {
    throw ConfigError(
        "sigma of an average: expected a number above 0 and up to {}, got {}", kWidestSigma, sigma);
  }
  // The variance falls as gamma grows, so the interval closes in on the one solution.
  double low = 0.0, high = 1.0;
  while (variance(high) > sigma * sigma) high *= 2.0;
  while (true) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) return middle;
    (variance(middle) > sigma * sigma ? low : high) = middle;
  }
}

PostHocWeights post_hoc_weights(const std::vector<PowerProfile>& snapshots,
                                const PowerProfile& wanted) {
  const auto count = static_cast<int64_t>(snapshots.size());
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor products = at::empty({count, count}, options);
  const at::Tensor wanted_products = at::empty({count, 1}, options);
  auto product = products.accessor<double, 2>();
  auto wanted_product = wanted_products.accessor<double, 2>();
  for (int64_t i = 0; i < count; ++i) {
    const PowerProfile& mine = snapshots[static_cast<size_t>(i)];
    for (int64_t j = 0; j < count; ++j) {
      product[i][j] = inner_product(mine, snapshots[static_cast<size_t>(j)]);
    }
    wanted_product[i][0] = inner_product(mine, wanted);
  }
  // Profiles of neighbouring snapshots are nearly the same: take the solution of least norm.
  const at::Tensor solution =
      std::get<0>(at::linalg_lstsq(products, wanted_products, std::nullopt, "gelsd"));
  const double size = inner_product(wanted, wanted);
  const double distance = size - 2.0 * (solution * wanted_products).sum().item<double>() +
                          solution.t().mm(products).mm(solution).item<double>();
  PostHocWeights result;
  result.missed = std::sqrt(std::max(distance, 0.0) / size);
  const at::Tensor flat = solution.flatten().contiguous();
  result.weights.assign(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + count);
  return result;
}

PostHocResult combine_post_hoc(const std::vector<std::string>& paths, const PostHocChoice& choice) {
  gamma_of_sigma(choice.sigma);  // before files are read
  std::vector<Value> files;      // mapped: what is not in use takes no memory
  for (const std::string& path : paths) files.push_back(read_checkpoint(path));
  std::vector<Snapshot> snapshots = snapshots_of(files, paths);
  std::map<int64_t, std::vector<Snapshot*>> of_unets;  // by number, in the order of the files
  for (Snapshot& each : snapshots) of_unets[each.unet].push_back(&each);
  PostHocResult result;
  for (const auto& [number, own] : of_unets) {
    const auto [step, missed] = weigh(own, choice);
    result.missed = std::max(result.missed, missed);
    if (number > of_unets.begin()->first) continue;
    result.step = step;
    result.snapshots = own.size();
  }
  Sums sums;
  for (size_t f = 0; f < files.size(); ++f) add_file(paths[f], f, snapshots, sums);
  const size_t newest = std::ranges::max_element(snapshots, {}, [](const Snapshot& each) {
                          return each.profile.step;
                        })->file;
  result.model_file = model_file_of(Cursor(files[newest], paths[newest]), sums);
  return result;
}

}  // namespace dalle2
