// SPDX-License-Identifier: MIT
// The running average of a network's weights. Words used: the *average* is the numbers; its *rule*
// (optim/average_rule.h) says how they follow the weights; the *averaged network* has them in the
// places of the weights; *post-hoc averages* (post_hoc_averages.h) are others, from which one is made
// after training. The config calls an average `ema`, as ema-pytorch does.
#pragma once

#include <c10/core/Event.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/shared/train_options.h"
#include "optim/average_rule.h"
#include "optim/flat_parameters.h"
#include "trainer/rank_shards.h"

namespace dalle2 {

/// Makes a network of the class and the options of the one that is averaged, with any weights.
using NetworkMaker = std::function<std::shared_ptr<torch::nn::Module>()>;

/// How the averages of a kind of run are laid out in its checkpoints.
struct AverageLayout {
  const char* ema_key = "ema";                  ///< of averages of ema-pytorch
  const char* diffusers_key = "ema_diffusers";  ///< and of diffusers
  /// One entry a part: names begin with "{part}." under ema_key, a list is at diffusers_key.
  /// False: the entries themselves, of the one part.
  bool many_parts = true;
  std::string network_prefix = {};  ///< of the network's names in an average, e.g. "net."
  /// Entries of the model that an average has besides those of its network (never averaged).
  std::function<StateDict()> rest = nullptr;
  /// Where the averaged model stands again, under the names of the live one; null: nowhere.
  const char* model_key = nullptr;

  const char* key(EmaKind kind) const {
    return kind == EmaKind::diffusers ? diffusers_key : ema_key;
  }
};

/// One flat buffer that follows the network's: with ema_pytorch's rule all of it, buffers too; with
/// diffusers' the parameters alone, of which those without a gradient are copied. It is the averaged
/// network's own buffer, unless it is spread over the ranks or lies in host memory between steps:
/// then there is an averaged network only while it is held.
class WeightAverage {
 public:
  /// Copies the weights. @param original, online have to outlive it
  WeightAverage(const torch::nn::Module& original,
                NetworkMaker make_network,
                const FlatParameters& online,
                const AveragesConfig& config);
  /// From now on keeps this rank's slice alone; starts over. @param shards has to outlive it
  void shard(const RankShards& shards);
  /// The averaged network is needed, until as many calls of let_go(): of an average that is spread
  /// over the ranks it is put together now, on all of them. No update may be made meanwhile.
  void hold();
  void let_go();
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
  /// The averaged network in eval mode, on the device of the original and of its class. Only read
  /// it: it may be the average itself or a copy of it, and what is frozen lies in the memory of the
  /// original. Where the average is spread over the ranks it has to be held; so for write().
  std::shared_ptr<torch::nn::Module> network() const;
  /// What is averaged here: all, or the slice. [n] float32, maybe in host memory. Waits for the device
  /// where the average lies in host memory and the last update is still on its way there.
  const at::Tensor& values() const;
  /// True if no average is NaN or infinite. Waits for the device.
  bool is_finite() const;

  /// What is under the key of the averages before any part is added, and what an untrained part
  /// adds to it.
  static Value empty_state(EmaKind kind, const AverageLayout& layout);
  static void write_untrained(EmaKind kind, Value& all, size_t index, const AverageLayout& layout);
  /// Adds the average of part `index`: tensors are the live ones.
  /// ema_pytorch: the entries of ema_pytorch.EMA: initted, step, online_model.*, ema_model.*; with
  /// adapters only what is trained. diffusers: EMAModel.state_dict() with the same keys, order and
  /// types and, beside those, `parameter_names`: which average is whose.
  void write(Value& all, size_t index, const AverageLayout& layout) const;
  /// The averaged model under the names of the live one.
  StateDict averaged_model(const AverageLayout& layout) const;
  /// Loads the average of part `index`. Of diffusers' kind: averages and step count; the options
  /// stay those of the config, missing keys keep their values, and with an entry None the average
  /// starts over. @param strict missing or unexpected keys are an error; else a warning
  /// @throws DataError naming what does not fit, with EMAModel's text for a value out of range or of
  /// another type; the average is then as it was (differs from upstream, which keeps what it had
  /// read before the fault)
  void read(const Cursor& all, size_t index, const AverageLayout& layout, bool strict);

 private:
  /// An averaged network, and its tensors in a buffer laid out as the online weights'.
  struct Whole {
    std::shared_ptr<torch::nn::Module> network;
    FlatParameters parameters;
    /// Of each buffer that is not averaged the original's and this network's: copied.
    std::vector<std::pair<at::Tensor, at::Tensor>> other_buffers;

    void copy_other_buffers(const at::Tensor& skipped = {}) const;
  };
  bool is_diffusers() const { return config_.ema.kind == EmaKind::diffusers; }
  /// Between steps the average lies in the averaged network, which is always there.
  bool is_resident() const { return shards_ == nullptr && !offload_; }
  void make_storage();
  std::unique_ptr<Whole> make_whole() const;
  std::unique_ptr<Whole> put_together() const;
  const Whole& whole() const;

  void write_ema_pytorch(Dict& all, const std::string& prefix, const AverageLayout& layout) const;
  Dict diffusers_state() const;
  void read_ema_pytorch(const Cursor& all,
                        const std::string& prefix,
                        const AverageLayout& layout,
                        bool strict);
  void read_diffusers(const Cursor& saved);

  const torch::nn::Module& original_;
  NetworkMaker make_network_;
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
  std::unique_ptr<Whole> whole_;
  int64_t holds_ = 0;
};

}  // namespace dalle2
