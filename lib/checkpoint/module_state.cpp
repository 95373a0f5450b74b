// SPDX-License-Identifier: MIT
#include "checkpoint/module_state.h"

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

#include <torch/nn.h>

#include <unordered_map>
#include <unordered_set>

namespace dalle2 {
namespace {

void collect(const torch::nn::Module& module, const std::string& prefix, StateDict& tensors) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    tensors.emplace_back(prefix + item.key(), item.value().detach());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    tensors.emplace_back(prefix + item.key(), item.value().detach());
  }
  for (const auto& item : module.named_children()) {
    collect(*item.value(), prefix + item.key() + ".", tensors);
  }
}

/// "\n  missing (2):\n    a\n    b"
std::string list_of(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  return fmt::format("\n  {} ({}):", title, names.size()) + indented_list(names);
}

/// Of a decoder's, a prior's, or the low-resolution noise's schedule: the config says it, and the module has computed it.
bool is_of_schedule(const std::string& name) {
  return name.find("noise_scheduler") != std::string::npos;
}

/// Betas of a file in half precision are rounded.
void warn_of_other_schedule(const at::Tensor& betas,
                            const at::Tensor& ours,
                            const std::string& where,
                            const std::string& name) {
  if (at::allclose(betas.to(ours.options()), ours, /*rtol=*/0.01, /*atol=*/1e-6)) return;
  log_warning("ckpt",
              "{}: {}: this is another noise schedule than that of the config (beta_schedule, "
              "zero_terminal_snr), which counts: samples are wrong unless you mean that",
              where,
              name);
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict tensors;
  collect(module, "", tensors);
  return tensors;
}

LoadReport load_state_dict(torch::nn::Module& module,
                           const StateDict& source,
                           const std::string& prefix,
                           bool strict,
                           const std::string& where) {
  std::unordered_map<std::string, at::Tensor> given;
  for (const auto& [name, tensor] : source) {
    if (name.starts_with(prefix)) given[name.substr(prefix.size())] = tensor;
  }
  LoadReport report;
  std::vector<std::string> shapes;
  const StateDict targets = state_dict(module);
  std::unordered_set<std::string> known;
  for (const auto& [name, target] : targets) {
    known.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      if (!is_of_schedule(name)) report.missing.push_back(prefix + name);
    } else if (found->second.sizes() != target.sizes()) {
      shapes.push_back(fmt::format("{}{}: expected {}, got {}",
                                   prefix,
                                   name,
                                   shape_text(target.sizes()),
                                   shape_text(found->second.sizes())));
    }
  }
  for (const auto& [name, tensor] : source) {
    if (name.starts_with(prefix) && !known.contains(name.substr(prefix.size()))) {
      report.unexpected.push_back(name);
    }
  }
  const bool names_fit = report.missing.empty() && report.unexpected.empty();
  if (!shapes.empty() || (strict && !names_fit)) {
    throw DataError("{}: does not fit the model that the config describes:{}{}{}",
                    where,
                    list_of("missing", report.missing),
                    list_of("unexpected", report.unexpected),
                    list_of("of another shape", shapes));
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, target] : targets) {
    const auto found = given.find(name);
    if (found == given.end()) continue;
    if (!is_of_schedule(name)) {
      at::Tensor(target).copy_(found->second);
    } else if (name.ends_with(".betas")) {
      warn_of_other_schedule(found->second, target, where, prefix + name);
    }
  }
  return report;
}

void check_finite(const StateDict& weights, const std::string& where) {
  for (const auto& [name, tensor] : weights) {
    if (!tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>()) continue;
    throw DataError("{}: {}: the weights are not finite", where, name);
  }
}

void warn_of_rest(const LoadReport& report, const std::string& where) {
  if (report.missing.empty() && report.unexpected.empty()) return;
  log_warning(
      "ckpt",
      "{}: {} tensors of the model were missing and keep their values (the first: {}), {} do not "
      "belong to it (the first: {})",
      where,
      report.missing.size(),
      report.missing.empty() ? "-" : report.missing.front(),
      report.unexpected.size(),
      report.unexpected.empty() ? "-" : report.unexpected.front());
}

}  // namespace dalle2
