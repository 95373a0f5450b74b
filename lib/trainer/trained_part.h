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

#include "dist/gradient_exchange.h"
#include "dist/process_group.h"
#include "model/lora.h"
#include "optim/flat_parameters.h"
#include "optim/half_weights.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/pass_graphs.h"
#include "optim/precision.h"
#include "trainer/averages/post_hoc_averages.h"
#include "trainer/averages/weight_average.h"
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

/// How a batch goes through a network.
struct PassSettings {
  at::Device device;
  MixedPrecision precision = MixedPrecision::no;
  StepTimes* step_times = nullptr;        ///< null: nothing is timed
  std::optional<int64_t> max_batch_size;  ///< samples at once; none: the whole batch
};

/// Mean loss of a chunk of the batch. [] float32
using ChunkLoss = std::function<at::Tensor(const ChunkRange& range)>;

/// A chunk of the batch, ready for the network: what the host has to decide is decided.
struct ChunkPass {
  RecordablePass pass;
  /// Mean loss of the chunk, given tensors like the inputs of `pass`. [] float32
  std::function<at::Tensor(const Tensors& inputs)> loss;
};
using PrepareChunk = std::function<ChunkPass(const ChunkRange& range)>;

/// How a part is optimized.
struct PartOptions {
  OptimizerOptions optimizer;
  LrSchedule schedule;
  double max_grad_norm;  ///< infinite: gradients are not clipped
};

struct TrainedPart {
  /// @param part_name name of the part in messages, e.g. "unet 1"; empty where the run has one part
  /// @param network_prefix of its network's names in the whole model, e.g. "unets.0."
  /// @param parameter_names those that the optimizer and the averages know
  TrainedPart(std::string part_name,
              std::string network_prefix,
              std::shared_ptr<torch::nn::Module> part_network,
              const std::vector<std::string>& parameter_names,
              const PartOptions& options)
      : name(std::move(part_name)),
        prefix(std::move(network_prefix)),
        network(std::move(part_network)),
        parameters(*network, parameter_names),
        gradients(parameters),
        optimizer(parameters, options.optimizer),
        schedule(options.schedule),
        max_grad_norm(options.max_grad_norm) {}

  std::string name, prefix;
  std::shared_ptr<torch::nn::Module> network;
  FlatParameters parameters;
  FlatGradients gradients;
  Optimizer optimizer;
  LrSchedule schedule;
  double max_grad_norm;
  /// Another part has parameters in the graph of this one's loss, as the discriminator has in that
  /// of a VQGAN-VAE: a backward pass is then for this part's parameters alone.
  bool shares_graph = false;
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
  /// The pass that follows is the last before the update.
  bool completes_update = true;
  /// The averages follow tensors that still move after the update, as a codebook does: they are made
  /// at the end of the step, Trainer::end_step().
  bool averages_at_end_of_step = false;
  bool step_is_open = false;      ///< an update of such a part was made, and its step continues
  bool averages_are_due = false;  ///< the last update was made, and no average knows of it
  at::Tensor was_skipped;         ///< [] of the last update: 1 if it was skipped, else 0
  SkippedUpdates skipped;
  /// Parameters without gradients that files number before this part's, in the states of optimizers:
  /// those of a prior's CLIP, as the reference's optimizer has them.
  std::vector<at::Tensor> numbered_before;
  /// PartPlan::after_step
  std::function<void()> after_step;

  /// Forward and backward of `batch` samples, each chunk weighted by its size and `weight`, so that
  /// loss and gradients are those of the whole batch; they add up until make_update().
  /// @return [] the loss times `weight`, detached
  at::Tensor accumulate(const PassSettings& settings,
                        int64_t batch,
                        double weight,
                        const ChunkLoss& loss_of);
  /// The same of chunks that are prepared apart from their passes, which can be recorded: `graphs`.
  at::Tensor accumulate_prepared(const PassSettings& settings,
                                 int64_t batch,
                                 double weight,
                                 const PrepareChunk& prepare);
  /// This rank has no more gradients for the update: what it has goes to the others. accumulate()
  /// does so after its last pass; without samples it is to be called instead of that.
  void send_gradients();
  void add_loss(const at::Tensor& more);
  /// Trains together with the same part of other ranks: begins with the weights and buffers of rank
  /// 0, and each update is made from the sum of all gradients. @param group has to outlive this
  /// @param sharding moments and averages are spread over the ranks, and each updates its own slice
  /// of the weights
  void connect(ProcessGroup& group, const ExchangeOptions& options, const ShardOptions& sharding);
  /// Steps the optimizer, unless a gradient or the loss is not finite; what is counted and averaged
  /// waits for settle(). Reads nothing back from the device.
  void make_update(double lr);
  /// Counts and averages the last update if it was made, counts it as skipped if not; waits for the
  /// device if need be. @return true if it was made and has not been settled before
  bool settle();
  /// Makes the averages if they are due and the step is not open.
  void make_averages_if_due();
  /// Of moments and averages that are spread over the ranks: gives every rank the weights that the
  /// others have updated. To be called once an update.
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
  at::Tensor scaled(const at::Tensor& loss_value) const;
  /// Gradients of `root`, given the one at it (undefined: 1), at this part's parameters and at
  /// `leaves`; they add up.
  void backward_from(const at::Tensor& root,
                     const at::Tensor& gradient,
                     const std::vector<at::Tensor>& leaves = {});
  /// The pass that follows is the last of the update on this rank: its gradients go to the others as
  /// they come.
  void begin_last_pass();
  /// Null: the process is alone.
  ProcessGroup* group() const { return group_; }

 private:
  /// Runs one pass, by its graph if there is one. @param pass if it has no inputs, the pass cannot be recorded
  /// @param factor of the loss; the work multiplies by this factor itself, here it only tells passes apart
  /// @param work runs the pass on the given inputs and adds to the gradients @return [] the loss that the work returns
  using PassWork = std::function<at::Tensor(const PassSettings& settings, const Tensors& inputs)>;
  at::Tensor run_pass(const PassSettings& settings,
                      const RecordablePass& pass,
                      double factor,
                      const PassWork& work);
  void refresh_half_weights(const PassSettings& settings);
  at::Tensor forward_backward(const PassSettings& settings,
                              double factor,
                              bool is_last,
                              const std::function<at::Tensor()>& loss_of);
  void update_weights(double lr, const at::Tensor& divisor, const at::Tensor& found_inf);
  void combine_ranks();
  void check_received();
  at::Tensor norm_of_gradients();
  bool any_rank(bool own, const char* what) const;

  ProcessGroup* group_ = nullptr;
  bool has_averaged_ = false;  // the optimizer has averaged the last update's parameters
  ExchangeOptions exchange_options_;
  std::vector<bool> received_;  // by any rank, in the first update
};

/// The parts of a trainer, null where one is not trained.
using TrainedParts = std::vector<std::unique_ptr<TrainedPart>>;

/// The same loss without gradients and without side effects.
at::Tensor evaluate_in_chunks(const PassSettings& settings,
                              int64_t batch,
                              const ChunkLoss& loss_of);

}  // namespace dalle2
