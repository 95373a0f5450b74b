// SPDX-License-Identifier: MIT
// What one optimizer trains: a network with its flat parameters and gradients, optimizer, schedule,
// loss scale, averages, and the outcome of its last update.
#pragma once

#include <torch/nn/module.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/this_process.h"
#include "dist/gradient_exchange.h"
#include "dist/process_group.h"
#include "model/lora.h"
#include "optim/flat_parameters.h"
#include "optim/optimizer.h"
#include "optim/pass_graphs.h"
#include "optim/precision.h"
#include "trainer/averages/weight_average.h"
#include "trainer/lanes.h"
#include "trainer/rank_shards.h"
#include "trainer/step_times.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

/// Updates of a part that were skipped, because their loss or gradient was not finite.
struct SkippedUpdates {
  int64_t total = 0;
  int64_t in_a_row = 0;  ///< since the last one that was made

  bool operator==(const SkippedUpdates&) const = default;
};

/// Usage: post() what the device will know, continue, and take() it when it matters.
class UpdateOutcome {
 public:
  /// Hands on the flag of an update. Does not wait: from a GPU it goes to page-locked memory.
  /// @param found_inf [] float32: 1 if the update is skipped
  void post(const at::Tensor& found_inf);
  /// Whether an outcome has been posted and not taken.
  bool pending() const { return pending_; }
  /// Waits until the device has got as far as post(). @return true if the update was made
  bool take();

 private:
  at::Tensor flag_;  // [] float32 in main memory
  std::optional<c10::Event> passed_;
  bool pending_ = false;
};

/// The share of a batch in an update.
struct BatchShare {
  double weight = 1.0;  ///< of its mean loss
  bool is_last = true;  ///< no batch of the update follows
};

/// Samples that go through the network together.
struct Pass {
  ChunkRange range;      ///< of the batch
  double factor = 1.0;   ///< of their mean loss in the loss of the update
  bool is_last = false;  ///< of the last batch of the update
  int64_t lane = 0;      ///< that it runs in: lanes.h
};

/// sum += part; an undefined sum is none yet.
void add_to(at::Tensor& sum, const at::Tensor& part);

/// Mean loss of a chunk of the batch. [] float32
using ChunkLoss = std::function<at::Tensor(const ChunkRange& range)>;

/// How a part is optimized.
struct PartOptions {
  OptimizerOptions optimizer;
  LrSchedule schedule;
  double max_grad_norm = 0;  ///< infinite: gradients are not clipped
};

/// Makes a network of some class and options, with any weights.
using NetworkMaker = std::function<std::shared_ptr<torch::nn::Module>()>;

/// What a kind of run says about a part of its model.
struct PartPlan {
  std::string name = "";  ///< in messages, e.g. "unet 1"; empty where the kind has one part
  std::string prefix;     ///< of the network's names in the model, e.g. "unets.0."
  /// Null: not trained. It keeps its place in the numbering and in the files anyway.
  std::shared_ptr<torch::nn::Module> network = nullptr;
  NetworkMaker make_network = nullptr;  ///< of an untrained part, to check its weights
  PartOptions options = {};
  /// The optimizer counts parameters that need no gradient too, as the reference's does for a
  /// prior.
  bool counts_frozen = false;
  /// Parameters without gradients that files number before this part's, in the states of optimizers:
  /// those of a prior's CLIP, as the reference's optimizer has them.
  std::vector<at::Tensor> numbered_before = {};
  /// Changes weights in place after each step of the optimizer and before averages take them, e.g.
  /// clamps a temperature. Must neither wait for the device nor change what it has changed.
  std::function<void()> after_step = nullptr;
};

/// What a kind of run says about its model.
struct ModelPlan {
  std::shared_ptr<torch::nn::Module> model;
  std::string model_name;             ///< in messages, e.g. "decoder"
  std::string part_noun = "network";  ///< of one part, e.g. "unet"
  std::string untrained_reason = "";  ///< why a part is not trained, for errors
  std::vector<PartPlan> parts = {};
  /// Its loss is a mean over the samples, or a joint loss, of passes that know nothing of each other.
  bool has_lanes = true;
  bool records_passes = false;  ///< as graphs, if the device has graphs
  std::string version =
      kCheckpointLayoutVersion;  ///< of dalle2-pytorch, whose layout the files have
};

struct TrainedPart {
  /// @param parameter_names those that the optimizer and the averages know
  TrainedPart(const PartPlan& part_plan, const std::vector<std::string>& parameter_names)
      : plan(part_plan),
        parameters(*plan.network, parameter_names),
        gradients(parameters),
        optimizer(parameters, plan.options.optimizer),
        schedule(plan.options.schedule) {}

  PartPlan plan;
  FlatParameters parameters;
  FlatGradients gradients;
  Optimizer optimizer;
  LrSchedule schedule;
  std::unique_ptr<WeightAverage> average;     ///< null without averages
  std::unique_ptr<PostHocAverages> post_hoc;  ///< null without such
  std::shared_ptr<DropoutSeed> dropout;       ///< of its adapters; null without
  at::Tensor grad_norm;                       ///< [] of the last update
  at::Tensor loss;                   ///< [] sum since the last update; undefined before one
  std::optional<GradScaler> scaler;  ///< with fp16
  UpdateOutcome outcome;             ///< of the last update
  at::Tensor last_loss;              ///< [] of the last update, over all ranks
  /// Adds the gradients up over the ranks; null where the process is alone.
  std::unique_ptr<GradientExchange> exchange;
  std::unique_ptr<RankShards> shards;         ///< null: every rank has all moments and averages
  std::unique_ptr<HalfWeights> half_weights;  ///< null until a pass in half precision
  std::unique_ptr<PassGraphs> graphs;         ///< null: passes are not recorded
  PassSettings settings{at::kCPU};
  at::Tensor was_skipped;  ///< [] of the last update: 1 if it was skipped, else 0
  SkippedUpdates skipped;

  // A step calls these in their order: for each pass prepare(), forward(), backward(); before the last
  // backward() begin_exchange(), after it finish_exchange(); then update() and average_weights().

  /// Runs `work` for the passes of a batch whose loss is a mean over its samples: chunks of the settings'
  /// `max_batch_size`, weighted by their size, so that loss and gradients are those of the whole batch; in
  /// lanes where they serve.
  /// @return [] the sum of what `work` returns
  at::Tensor run_passes(int64_t batch,
                        const BatchShare& share,
                        const std::function<at::Tensor(const Pass& pass)>& work);
  /// work(lane, i) for i = 0 ... count - 1, forward and backward passes: in_lanes(), and then, of more than
  /// one lane, the sum of their gradients, in their order. @param is_last of the update
  void pass_in_lanes(int64_t lanes,
                     size_t count,
                     bool is_last,
                     const std::function<void(int64_t lane, size_t i)>& work);
  LanePlan plan_lanes(int64_t batch) const;
  /// The mean loss of a batch in chunks, without gradients and without side effects.
  at::Tensor evaluate(int64_t batch, const ChunkLoss& loss_of) const;
  /// What has no gradient: `make` under autocast. @return what it returns
  template <class Make>
  auto prepare(const Pass& pass, Make&& make) const {
    return timed(times_of(pass.lane), StepPhase::kForward, [&] {
      const Autocast autocast(settings.device.type(), settings.precision);
      return make();
    });
  }
  /// @param loss_of gives the mean loss of the pass, [] float32 @return [] its part of the update's loss
  template <class LossOf>
  at::Tensor forward(const Pass& pass, LossOf&& loss_of) {
    return timed(times_of(pass.lane), StepPhase::kForward, [&] {
      if (pass.lane == 0) refresh_half_weights();
      const Autocast autocast(settings.device.type(), settings.precision);
      std::optional<HalfWeights::Pass> halves;
      if (half_weights) halves.emplace(*half_weights, pass.lane == 0 ? &gradients : nullptr);
      return loss_of() * pass.factor;
    });
  }
  /// Adds the gradients of a loss to those of the update, or of the pass's lane.
  void backward(const Pass& pass, const at::Tensor& loss_value);
  /// The backward pass that follows is the last of the update on this rank: its gradients go to the
  /// other ranks as they come.
  void begin_exchange() {
    if (exchange) exchange->begin();
  }
  /// This rank has no more gradients for the update: what has not gone to the others goes now, also if
  /// the rank had no samples.
  void finish_exchange();
  /// Runs `work(examples, seed)`, forward and backward of a pass, as a CUDA graph if there is one of it:
  /// `graphs`. What differs between two such passes is a tensor of `examples`, or the seed.
  /// @param seed of dropout masks; none: nothing is dropped @param variant RecordablePass::variant
  /// @return [] the loss that the work returns, detached
  template <TensorGroup Examples, class Work>
  at::Tensor run_pass(const Pass& pass,
                      const Examples& examples,
                      const std::optional<DropoutSeed>& seed,
                      std::string variant,
                      Work&& work) {
    if (!graphs) return work(examples, seed.value_or(DropoutSeed{}));
    RecordablePass recordable{tensors_of(examples), std::move(variant)};
    if (seed) recordable.inputs.push_back(numbers_of(*seed));
    return by_graph(recordable, pass.factor, [&](const Tensors& inputs) {
      DropoutSeed own = seed.value_or(DropoutSeed{});
      if (seed) own.on_device = inputs.back();
      return work(with_tensors(examples, inputs), own);
    });
  }
  /// Trains together with the same part of other ranks: begins with the weights and buffers of rank
  /// 0, and each update is made from the sum of all gradients. @param group has to outlive this
  /// @param sharding moments and averages are spread over the ranks, and each updates its own slice
  /// of the weights
  void connect(ProcessGroup& group, const ExchangeOptions& options, const ShardOptions& sharding);
  /// Steps the optimizer, unless a gradient or the loss is not finite; settle() comes between two
  /// updates. Reads nothing back from the device.
  void update(double lr);
  /// The averages take in what the last update has made of the weights and buffers; a skipped one
  /// changes none.
  void average_weights();
  /// Counts the last update as made or as skipped; waits for the device if need be.
  /// @return true if it was made and has not been settled before
  bool settle();
  /// Of moments and averages that are spread over the ranks: gives every rank the weights that the
  /// others have changed. It follows update(), and averages that become the weights.
  void share_weights();
  /// The moments of all parameters. Where they are spread over the ranks all have to call it: rank 0
  /// gets them, in files, the others undefined tensors.
  FlatMoments whole_moments() const;
  /// All averages start over as copies of the weights.
  void begin_averages_anew();
  /// "weights" or "averaged weights" where they hold NaN or infinity. Waits for the device.
  /// Where moments and averages are spread over the ranks all have to ask, and get one answer.
  std::optional<std::string> non_finite_kind() const;

  /// What a loss that is made here makes others of: with fp16 multiplied by the loss scale.
  at::Tensor scaled(const at::Tensor& loss_value) const {
    return scaler ? loss_value * scaler->scale() : loss_value;
  }
  /// Gradients of `root`, given the one at it (undefined: 1); they add up.
  void backward_from(int64_t lane, const at::Tensor& root, const at::Tensor& gradient);
  /// Null: the process is alone.
  ProcessGroup* group() const { return group_; }
  /// The time of a step is that of its first lane.
  StepTimes* times_of(int64_t lane) const { return lane == 0 ? settings.step_times : nullptr; }

 private:
  at::Tensor by_graph(const RecordablePass& pass,
                      double factor,
                      const std::function<at::Tensor(const Tensors& inputs)>& work);
  at::Tensor numbers_of(const DropoutSeed& seed) const;
  void refresh_half_weights();
  /// Whether the optimizer changes what follows the weights while it has them at hand. What after_step()
  /// changes has to be followed later.
  bool updates_companions() const { return !plan.after_step && optimizer.takes_companions(); }
  std::optional<double> fused_average_share() const;
  void update_weights(double lr, const at::Tensor& divisor, const at::Tensor& found_inf);
  void combine_ranks();
  void check_received();
  at::Tensor norm_of_gradients();
  bool any_rank(bool own, const char* what) const;

  ProcessGroup* group_ = nullptr;
  ExchangeOptions exchange_options_;
  std::vector<bool> received_;  // by any rank, in the first update
  /// Of passes under way, for each lane but the first: a gradient for each parameter, or none.
  std::vector<std::vector<at::Tensor>> lane_gradients_;
};

/// The parts of a trainer, null where one is not trained.
using TrainedParts = std::vector<std::unique_ptr<TrainedPart>>;

}  // namespace dalle2
