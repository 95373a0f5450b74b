// SPDX-License-Identifier: MIT
// The average of a network's weights, of either kind.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/state_dict.h"
#include "config/shared/train_options.h"
#include "optim/ema.h"
#include "optim/ema_model.h"
#include "optim/finite.h"
#include "optim/flat_parameters.h"
#include "optim/flat_slice.h"
#include "trainer/rank_shards.h"

namespace dalle2 {

/// Makes a network of the class and the options of the one that is averaged, with any weights.
using NetworkMaker = std::function<std::shared_ptr<torch::nn::Module>()>;

/// How the averages of a kind of run are laid out in its checkpoints.
struct AverageLayout {
  const char* ema_key = "ema";                  ///< of averages of ema-pytorch
  const char* diffusers_key = "ema_diffusers";  ///< and of diffusers
  /// One entry a part: names begin with "{part}." under ema_key, a list stands at diffusers_key.
  /// False: the entries themselves, of the one part.
  bool many_parts = true;
  std::string network_prefix = {};  ///< of the network's names in an average, e.g. "net."
  /// Entries of the model that an average has besides those of its network (never averaged).
  std::function<StateDict()> rest = nullptr;
  /// Where the averaged model stands once more, under the names of the live one; null: nowhere.
  const char* model_key = nullptr;
};

/// What a training step, a sampler and a checkpoint need to know of an average.
class WeightAverage {
 public:
  virtual ~WeightAverage() = default;
  /// From now on keeps this rank's slice alone; begins anew. @param shards has to outlive it
  virtual void shard(const RankShards& shards) = 0;
  /// The averaged network is needed, until as many calls of let_go(): of one that is spread over the
  /// ranks it is put together now, on all of them. The average must not be updated meanwhile.
  void hold();
  void let_go();
  /// Call after every optimizer step.
  virtual void update() = 0;
  /// Decay of the next averaging.
  virtual double decay() const = 0;
  /// Makes the average a copy of the weights and forgets the steps.
  virtual void begin_anew() = 0;
  /// A network in eval mode with the averaged weights, on the device of the original and of its
  /// class. Only read it: it may be the average itself or a copy of it. Where the average is spread
  /// over the ranks it has to be held; so for write().
  virtual std::shared_ptr<torch::nn::Module> network() const = 0;
  /// True if no average is NaN or infinite. Waits for the device.
  virtual bool is_finite() const = 0;

  /// Adds the average of part `index` to what its kind's key of a checkpoint holds: tensors are the
  /// live ones. @param live the network that is averaged
  virtual void write(Value& all,
                     size_t index,
                     const torch::nn::Module& live,
                     const AverageLayout& layout) const = 0;
  /// Loads the average of part `index`. @param strict missing or unexpected keys are an error; else
  /// a warning @throws DataError naming what does not fit
  virtual void read(const Cursor& all, size_t index, const AverageLayout& layout, bool strict) = 0;

 protected:
  virtual void put_together() = 0;
  virtual void forget_whole() = 0;

 private:
  int64_t holds_ = 0;
};

/// The key of a kind's averages.
const char* average_key(EmaKind kind, const AverageLayout& layout);
/// What stands there before any part is added, and what an untrained part adds to it.
Value empty_averages(EmaKind kind, const AverageLayout& layout);
void write_untrained_average(EmaKind kind, Value& all, size_t index, const AverageLayout& layout);
/// The averaged model under the names of the live one.
StateDict averaged_model(const WeightAverage& average,
                         const FlatParameters& parameters,
                         const AverageLayout& layout);

/// The reference's kind: a network of its own that follows, buffers too; frozen tensors are shared.
class EmaPytorchAverage : public WeightAverage {
 public:
  EmaPytorchAverage(const torch::nn::Module& original,
                    const NetworkMaker& make_network,
                    const FlatParameters& online,
                    const EmaOptions& options);
  void shard(const RankShards& shards) override;
  void update() override;
  double decay() const override { return ema.decay(); }
  void begin_anew() override;
  std::shared_ptr<torch::nn::Module> network() const override { return whole().network; }
  bool is_finite() const override { return all_finite(ema.values()); }
  /// The entries of ema_pytorch.EMA: initted, step, online_model.*, ema_model.*; with adapters only
  /// what is trained.
  void write(Value& all,
             size_t index,
             const torch::nn::Module& live,
             const AverageLayout& layout) const override;
  void read(const Cursor& all, size_t index, const AverageLayout& layout, bool strict) override;

 private:
  /// An averaged network, and its tensors in a buffer laid out as the online weights'.
  struct Whole {
    std::shared_ptr<torch::nn::Module> network;
    FlatParameters parameters;
    /// Of each buffer that is no floating one the original's and this network's: copied, not averaged.
    std::vector<std::pair<at::Tensor, at::Tensor>> other_buffers;

    void copy_other_buffers() const;
  };
  std::unique_ptr<Whole> make_whole() const;
  const Whole& whole() const;
  void put_together() override;
  void forget_whole() override;

  const torch::nn::Module& original_;
  NetworkMaker make_network_;
  const FlatParameters& online_;
  std::unique_ptr<Whole> whole_;  // of a slice: while it is held
  const RankShards* shards_ = nullptr;

 public:
  Ema ema;
};

/// EMAModel of diffusers: the averages of the parameters alone, which may lie in host memory
/// between steps.
class DiffusersAverage : public WeightAverage {
 public:
  DiffusersAverage(const torch::nn::Module& original,
                   NetworkMaker make_network,
                   const FlatParameters& online,
                   const EmaConfig& config);
  void shard(const RankShards& shards) override;
  void update() override;
  double decay() const override { return ema.get_decay(ema.optimization_step() + 1); }
  void begin_anew() override { ema.begin_anew(followed_); }
  std::shared_ptr<torch::nn::Module> network() const override;
  bool is_finite() const override { return all_finite(ema.shadow_params()); }

  /// ema_model_state() and, beside upstream's keys, `parameter_names`: which average is whose.
  void write(Value& all,
             size_t index,
             const torch::nn::Module& live,
             const AverageLayout& layout) const override;
  /// Loads the averages and the step count; the options stay those of the config. With an entry
  /// None the average starts over.
  void read(const Cursor& all, size_t index, const AverageLayout& layout, bool strict) override;

 private:
  /// The part of a parameter that a slice has.
  struct Piece {
    size_t parameter;
    FlatSlice of_parameter, of_slice;
  };
  void keep_on_host();
  std::vector<at::Tensor> pieces_of(const std::vector<at::Tensor>& parameters) const;
  std::vector<at::Tensor> gathered() const;
  void put_together() override;
  void forget_whole() override { held_.reset(); }
  std::shared_ptr<torch::nn::Module> make_averaged(const std::vector<at::Tensor>& shadows) const;

  struct Held {
    std::vector<at::Tensor> shadows;  // one a parameter
    std::shared_ptr<torch::nn::Module> network;
  };
  const torch::nn::Module& original_;
  NetworkMaker make_network_;
  const FlatParameters& online_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> followed_;  // the parameters, or their pieces in the slice
  std::vector<Piece> pieces_;         // of a slice
  at::Device device_;
  bool offload_;
  std::optional<Held> held_;
  const RankShards* shards_ = nullptr;

 public:
  EmaModel ema;
};

/// Of the kind that the config names. @param original, online have to outlive it
std::unique_ptr<WeightAverage> make_average(const torch::nn::Module& original,
                                            const NetworkMaker& make_network,
                                            const FlatParameters& online,
                                            const AveragesConfig& config);

}  // namespace dalle2
