// SPDX-License-Identifier: MIT
// Puts averages in the place of the weights that they are averages of.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <vector>

#include "model/pass_scopes.h"
#include "trainer/trained_part.h"

namespace dalle2 {

/// The averaged networks of all parts are available while it lives (WeightAverage::hold()): a
/// network that would be made at each use is made once, and averages that are spread over the ranks
/// are put together. All ranks have to make one, and later use of the averages needs no other rank.
class HeldAverages {
 public:
  explicit HeldAverages(const TrainedParts& parts);
  ~HeldAverages();
  HeldAverages(const HeldAverages&) = delete;
  HeldAverages& operator=(const HeldAverages&) = delete;

 private:
  std::vector<WeightAverage*> averages_;
};

/// Puts another network in the place of that of part `index`. @return the one that was there
using SwapNetwork = std::function<std::shared_ptr<torch::nn::Module>(
    size_t index, std::shared_ptr<torch::nn::Module> network)>;

/// The model in eval mode, with the averaged networks of all parts that have one, for as long as it
/// lives. Afterwards every network is in its place and every module in the mode it was in.
class AveragesInPlace {
 public:
  /// @throws what making an averaged network throws; nothing is changed then
  AveragesInPlace(torch::nn::Module& model, const TrainedParts& parts, SwapNetwork swap);
  ~AveragesInPlace();
  AveragesInPlace(const AveragesInPlace&) = delete;
  AveragesInPlace& operator=(const AveragesInPlace&) = delete;

 private:
  EvalScope eval_;  // the first member: modes come back when the live networks are
  SwapNetwork swap_;
  std::vector<std::shared_ptr<torch::nn::Module>> live_;  ///< null where nothing was swapped
};

}  // namespace dalle2
