// SPDX-License-Identifier: MIT
#include "trainer/averaged_network.h"

#include <torch/torch.h>

#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "checkpoint/module_state.h"

namespace dalle2 {
namespace {

/// Names of the parameters of `network` that are not averaged: the frozen ones. Of a tensor with
/// several names the average knows the first, and all are kept.
std::unordered_set<std::string> frozen_names(const torch::nn::Module& network,
                                             const FlatParameters& averaged) {
  const std::vector<std::string> names = averaged.names();
  const std::unordered_set<std::string> own(names.begin(), names.end());
  std::unordered_set<const void*> kept;
  std::unordered_set<std::string> frozen;
  for (const auto& item : network.named_parameters()) {
    const void* const tensor = item.value().unsafeGetTensorImpl();
    if (own.contains(item.key())) kept.insert(tensor);
    if (!kept.contains(tensor)) frozen.insert(item.key());
  }
  return frozen;
}

}  // namespace

StateDict averaged_state(const torch::nn::Module& network, const FlatParameters& averaged) {
  const auto frozen = frozen_names(network, averaged);
  StateDict kept;
  for (auto& [name, tensor] : state_dict(network)) {
    if (!frozen.contains(name)) kept.emplace_back(name, tensor);
  }
  return kept;
}

void load_averaged_state(torch::nn::Module& network,
                         const FlatParameters& averaged,
                         const StateDict& tensors,
                         const std::string& prefix,
                         bool strict,
                         const Cursor& saved) {
  StateDict all = tensors;
  const auto frozen = frozen_names(network, averaged);
  for (auto& [name, tensor] : state_dict(network)) {
    if (frozen.contains(name)) all.emplace_back(prefix + name, tensor);
  }
  warn_of_rest(load_state_dict(network, all, prefix, strict, saved.where()), saved.where());
}

std::optional<Cursor> find_averages(const Cursor& root, const char* key) {
  const auto saved = root.find(key);
  if (!saved) {
    log_warning("ckpt",
                "{}: no averaged weights '{}' (it was made with use_ema false or another "
                "ema.kind): they begin as copies of the weights",
                root.where(),
                key);
  }
  return saved;
}

}  // namespace dalle2
