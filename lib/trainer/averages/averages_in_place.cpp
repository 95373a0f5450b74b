// SPDX-License-Identifier: MIT
#include "trainer/averages/averages_in_place.h"

#include <utility>

namespace dalle2 {

HeldAverages::HeldAverages(const TrainedParts& parts) {
  for (const auto& part : parts) {
    if (!part || !part->average) continue;
    part->average->hold();
    averages_.push_back(part->average.get());
  }
}

HeldAverages::~HeldAverages() {
  for (WeightAverage* average : averages_) average->let_go();
}

AveragesInPlace::AveragesInPlace(torch::nn::Module& model,
                                 const TrainedParts& parts,
                                 SwapNetwork swap)
    : eval_(model), swap_(std::move(swap)), live_(parts.size()) {
  // All networks before the first swap: making one may fail, and nothing would be put back.
  std::vector<std::shared_ptr<torch::nn::Module>> averaged(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i] || !parts[i]->average) continue;
    averaged[i] = parts[i]->average->network();
    averaged[i]->eval();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (averaged[i]) live_[i] = swap_(i, averaged[i]);
  }
}

AveragesInPlace::~AveragesInPlace() {
  for (size_t i = 0; i < live_.size(); ++i) {
    if (live_[i]) swap_(i, live_[i]);
  }
}

}  // namespace dalle2
