// SPDX-License-Identifier: MIT
// The running average of a network's weights. Words used: the *average* is the numbers; its *rule*
// (optim/average_rule.h) says how they follow the weights; an average that is *in place* has its memory in
// the tensors of the network; *post-hoc averages* are others, from which one is made
// after training. The config calls an average `ema`, as ema-pytorch does.
#pragma once

#include <c10/core/Event.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/shared/train_options.h"
#include "optim/average_rule.h"
#include "optim/flat_parameters.h"
#include "trainer/rank_shards.h"

namespace dalle2 {

/// How the averages of a kind of run are laid out in its checkpoints.
struct AverageLayout {
  /// One entry a part: of ema-pytorch's averages names begin with "{part}.", of diffusers' there is a list.
  /// False: the entries themselves, of the one part.
  bool many_parts = true;
  std::string network_prefix = {};  ///< of the network's names in an average, e.g. "net."
  /// Entries of the model that an average has besides those of its network (never averaged).
  std::function<StateDict()> rest = nullptr;
  /// Where the averaged model stands again, under the names of the live one; null: nowhere.
  const char* model_key = nullptr;

  static const char* key(EmaKind kind) {
    return kind == EmaKind::diffusers ? "ema_diffusers" : "ema";
  }
  /// Of the names of ema-pytorch's entries.
  std::string prefix(size_t part) const { return many_parts ? std::to_string(part) + "." : ""; }
};

/// One flat buffer that follows the network's: with ema_pytorch's rule all of it, buffers too; with
/// diffusers' the parameters alone, of which those without a gradient are copied. Where it is spread over
/// the ranks, or lies in host memory between steps, it is whole and on the device only while it is held.
class WeightAverage {
 public:
  /// Copies the weights. @param network, online have to outlive it
  WeightAverage(torch::nn::Module& network,
                const FlatParameters& online,
                const AveragesConfig& config);
  /// From now on keeps this rank's slice alone; starts over. @param shards has to outlive it
  void shard(const RankShards& shards);
  /// The average is available for as long as one lives: it is put together now, by all ranks where it is
  /// spread over them. No update may be made meanwhile.
  class Held {
   public:
    explicit Held(const WeightAverage& average);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   protected:
    const WeightAverage& average_;
  };
  /// The average in the tensors of its network, for as long as it lives. Of one that is spread over the
  /// ranks only while it is held.
  class InPlace : Held {
   public:
    explicit InPlace(const WeightAverage& average);
    ~InPlace();
  };
  /// Takes in what an optimizer step has made of the weights. @param skipped AverageRule::update()
  /// @param has_parameters the optimizer has averaged the parameters, as share_of_next() says
  void update(const at::Tensor& skipped = {}, bool has_parameters = false);
  /// AverageRule::count()
  void count() { rule_->count(); }
  /// AverageRule::share_of_next(), where the average lies beside the weights.
  std::optional<double> share_of_next() const;
  const AverageRule& rule() const { return *rule_; }
  /// Makes the average a copy of the weights and forgets the steps.
  void begin_anew();
  /// What is averaged here: all, or the slice. [n] float32, maybe in host memory. Waits for the device
  /// where the average lies in host memory and the last update is still on its way there.
  const at::Tensor& values() const;
  /// True if no average is NaN or infinite. Waits for the device.
  bool is_finite() const { return all_finite(values()); }

  // A part's average in a checkpoint: tensors are the live ones. One that is spread over the ranks has to be held.

  /// Adds the entries of ema_pytorch.EMA: initted, step, online_model.*, ema_model.*; with adapters only
  /// what is trained.
  void write_ema_pytorch(Dict& all, const std::string& prefix, const AverageLayout& layout) const;
  /// What an untrained part adds.
  static void write_untrained(Dict& all, const std::string& prefix);
  /// EMAModel.state_dict() with the same keys, order and types and, beside those, `parameter_names`:
  /// which average is whose.
  Dict diffusers_state() const;
  /// The averaged model under the names of the live one.
  StateDict averaged_model(const AverageLayout& layout) const;
  /// @param strict missing or unexpected keys are an error; else a warning
  /// @throws DataError naming what does not fit
  void read_ema_pytorch(const Cursor& all,
                        const std::string& prefix,
                        const AverageLayout& layout,
                        bool strict);
  /// Averages and step count; the options stay those of the config, missing keys keep their values, and if
  /// `saved` is None the average starts over.
  /// @throws DataError naming what does not fit, with EMAModel's text for a value out of range or of
  /// another type; the average is then as it was (differs from upstream, which keeps what it had read before the fault)
  void read_diffusers(const Cursor& saved);

 private:
  /// A tensor of the network, its own memory, and that of its average.
  struct Place {
    at::Tensor tensor, live, averaged;
  };
  bool is_diffusers() const { return config_.ema.kind == EmaKind::diffusers; }
  /// Between steps the average is whole and lies on the device.
  bool is_resident() const { return shards_ == nullptr && !offload_; }
  void make_storage();
  void set_whole(at::Tensor whole) const;
  at::Tensor put_together() const;
  const WeightAverage& checked_held() const;
  void put(at::Tensor Place::*memory) const;
  void copy_other_buffers(const at::Tensor& skipped = {}) const;

  std::unordered_set<std::string> frozen_names() const;
  StateDict model_with_network(const AverageLayout& layout, const std::string& prefix) const;

  torch::nn::Module& network_;
  const FlatParameters& online_;
  AveragesConfig config_;
  std::unique_ptr<AverageRule> rule_;
  bool offload_;
  const RankShards* shards_ = nullptr;
  FlatSlice kept_;                 // of the flat buffer
  std::vector<FlatSlice> copied_;  // of what is kept: not averaged
  at::Tensor average_;             // [kept_.length()]
  /// Of an average in host memory: passed when the last update has arrived there.
  mutable std::optional<c10::Event> arrival_;
  /// Of each buffer that is not in the flat buffer the network's and the average's own: copied.
  std::vector<std::pair<at::Tensor, at::Tensor>> other_buffers_;
  /// Laid out as the online weights; undefined: neither resident nor held.
  mutable at::Tensor whole_;
  mutable std::vector<Place> places_;  // in whole_
  mutable int64_t holds_ = 0, in_place_ = 0;
};

/// Averages of one network from which one is chosen after training (checkpoint/post_hoc.h). All of its flat buffer is averaged, or the slice of this rank.
class PostHocAverages {
 public:
  /// @param online has to outlive it
  PostHocAverages(const FlatParameters& online, const PostHocEmaConfig& config);

  /// Take in what an optimizer step has made of the weights. @param skipped AverageRule::update()
  void update(const at::Tensor& skipped = {});
  /// AverageRule::count()
  void count() {
    for (Average& average : averages_) average.rule.count();
  }
  void begin_anew();
  /// From now on keeps this rank's slice alone; starts over. @param shards has to outlive it
  void shard(const RankShards& shards);
  /// True if none of them holds NaN or infinity. Waits for the device.
  bool is_finite() const;

  /// {step, averages: [{sigma, weights: {name: tensor}}], prefix}. Tensors are the live ones. Where the averages are
  /// spread over the ranks all have to call it: rank 0 gets whole ones in host memory, the others a state without any.
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
