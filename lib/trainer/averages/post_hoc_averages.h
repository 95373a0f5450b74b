// SPDX-License-Identifier: MIT
// Averages of a network from which one is chosen after training (checkpoint/post_hoc.h).
#pragma once

#include <string>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/shared/train_options.h"
#include "optim/average_rule.h"
#include "optim/flat_parameters.h"
#include "trainer/rank_shards.h"

namespace dalle2 {

/// The averages of one network. All of its flat buffer is averaged, or the slice of this rank.
class PostHocAverages {
 public:
  /// @param online has to outlive it
  PostHocAverages(const FlatParameters& online, const PostHocEmaConfig& config);

  /// Take in what an optimizer step has made of the weights. @param skipped AverageRule::update()
  void update(const at::Tensor& skipped = {});
  /// AverageRule::count()
  void count();
  void begin_anew();
  /// From now on keeps this rank's slice alone; starts over. @param shards has to outlive it
  void shard(const RankShards& shards);
  /// True if none of them holds NaN or infinity. Waits for the device.
  bool is_finite() const;

  /// {step, averages: [{sigma, weights: {name: tensor}}], prefix}. Tensors are the live ones. Where
  /// the averages are spread over the ranks all have to call it: rank 0 gets whole ones in host
  /// memory, the others a state without any.
  /// @param prefix of the network's names in the whole model, e.g. "unets.0."
  Dict state(const std::string& prefix) const;
  /// @throws DataError if the widths or the weights differ from these
  void load_state(const Cursor& saved);

 private:
  struct Average {
    double sigma;
    PowerRule rule;
    at::Tensor values;  // [kept_.length()]
  };
  StateDict named(const at::Tensor& values) const;

  const FlatParameters& online_;
  const RankShards* shards_ = nullptr;
  FlatSlice kept_;  // of the flat buffer
  std::vector<Average> averages_;
};

}  // namespace dalle2
