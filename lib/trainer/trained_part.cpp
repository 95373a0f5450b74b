// SPDX-License-Identifier: MIT
// The passes of a step and the update of a network's weights. A loss or gradient that is not finite
// skips the update; the device finds that out by itself, and the host learns of it when it asks, at
// the latest before the next update.
#include "trainer/trained_part.h"

#include <torch/torch.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/types.h>
#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/log.h"

namespace dalle2 {
namespace {

/// [] float32: 1 unless norm and loss are finite. Their sum is if and only if both are.
at::Tensor find_inf(const at::Tensor& norm, const at::Tensor& loss) {
  const at::Tensor sum = loss.defined() ? norm + loss : norm;
  return sum.isfinite().logical_not().to(at::kFloat);
}

/// Whether gradients go only to the rank that updates their slice, and not to all: half the bytes. Not where
/// that would change bits, nor where a bucket would go to too many ranks: with very short slices calls take
/// longer than their bytes (docs/scaling.md).
bool sends_to_owners(const ProcessGroup& group, int64_t numel, int64_t bucket_bytes) {
  constexpr int64_t kMostRanks = 4;  // of a bucket
  const int64_t bytes = numel * static_cast<int64_t>(sizeof(float));
  return !group.sums_depend_on_place() &&
         bytes / group.size() * kMostRanks >= std::min(bucket_bytes, bytes);
}

}  // namespace

LanePlan TrainedPart::plan_lanes(int64_t batch) const {
  PassSettings of_step = settings;
  if (dropout) of_step.has_lanes = false;  // all adapters of a network look at one seed
  constexpr auto kBytes = static_cast<int64_t>(sizeof(float));
  return dalle2::plan_lanes(of_step, batch, parameters.parameter_span() * kBytes);
}

at::Tensor TrainedPart::run_passes(int64_t batch,
                                   const BatchShare& share,
                                   const std::function<at::Tensor(const Pass& pass)>& work) {
  const LanePlan planned = plan_lanes(batch);
  const std::vector<ChunkRange> ranges = chunk_ranges(batch, planned.max_batch_size);
  std::vector<at::Tensor> losses(ranges.size());
  if (planned.lanes > 1) refresh_half_weights();  // all lanes read them
  pass_in_lanes(planned.lanes, ranges.size(), share.is_last, [&](int64_t lane, size_t i) {
    const double factor =
        share.weight * static_cast<double>(ranges[i].length) / static_cast<double>(batch);
    // Of several lanes the gradients are complete when all are added up.
    const bool is_last = share.is_last && planned.lanes == 1 && i + 1 == ranges.size();
    losses[i] = work({ranges[i], factor, is_last, lane});
  });
  at::Tensor total;
  for (const at::Tensor& loss_of_pass : losses) add_to(total, loss_of_pass);
  return total;
}

void TrainedPart::pass_in_lanes(int64_t lanes,
                                size_t count,
                                bool is_last,
                                const std::function<void(int64_t lane, size_t i)>& work) {
  const size_t numbers = parameters.parameters().size();
  lane_gradients_.assign(static_cast<size_t>(lanes) - 1, std::vector<at::Tensor>(numbers));
  in_lanes(lanes, count, work);
  if (lanes == 1) return;
  in_lanes(lanes, numbers, [&](int64_t /*lane*/, size_t number) {
    for (const auto& own : lane_gradients_) gradients.add(number, own[number]);
  });
  lane_gradients_.clear();
  if (is_last) begin_exchange();
  gradients.tell_received();
}

void add_to(at::Tensor& sum, const at::Tensor& part) {
  sum = sum.defined() ? sum + part : part;
}

/// A number of the host would be recorded as it is. @return [2] int64: DropoutSeed::on_device
at::Tensor TrainedPart::numbers_of(const DropoutSeed& seed) const {
  const at::Device& device = settings.device;
  const at::Tensor host = at::empty({2}, at::dtype(at::kLong).pinned_memory(!device.is_cpu()));
  auto* const numbers = host.mutable_data_ptr<int64_t>();
  numbers[0] = std::bit_cast<int64_t>(seed.seed);
  numbers[1] = seed.first_sample;
  return host.to(device, /*non_blocking=*/true);
}

/// The weights are cast to half precision before that: their cast must not be recorded.
at::Tensor TrainedPart::by_graph(const RecordablePass& pass,
                                 double factor,
                                 const std::function<at::Tensor(const Tensors& inputs)>& work) {
  const at::Tensor replayed = timed(settings.step_times, StepPhase::kForward, [&] {
    refresh_half_weights();
    return graphs->replay(pass, factor);
  });
  if (replayed.defined()) return replayed;
  return graphs->run(pass, factor, [&](const Tensors& inputs, bool is_recorded) {
    StepTimes* const times = settings.step_times;
    const auto restore = c10::make_scope_exit([&] { settings.step_times = times; });
    if (is_recorded) settings.step_times = nullptr;
    return work(inputs);
  });
}

void TrainedPart::refresh_half_weights() {
  if (settings.precision == MixedPrecision::no) return half_weights.reset();
  if (!half_weights) {
    const at::ScalarType dtype =
        settings.precision == MixedPrecision::fp16 ? at::kHalf : at::kBFloat16;
    half_weights = std::make_unique<HalfWeights>(parameters, dtype);
  }
  half_weights->refresh();
}

void TrainedPart::backward(const Pass& pass, const at::Tensor& loss_value) {
  timed(times_of(pass.lane), StepPhase::kBackward, [&] {
    backward_from(pass.lane, scaled(loss_value), {});
  });
}

void TrainedPart::finish_exchange() {
  if (!exchange) return;
  gradients.values();  // what has not arrived here is zero
  exchange->send_rest();
}

void TrainedPart::backward_from(int64_t lane, const at::Tensor& root, const at::Tensor& gradient) {
  if (lane == 0) return root.backward(gradient);
  std::vector<at::Tensor> own;
  std::vector<size_t> numbers;
  for (size_t i = 0; i < parameters.parameters().size(); ++i) {
    const at::Tensor& parameter = parameters.parameters()[i].tensor;
    if (!parameter.requires_grad()) continue;
    own.push_back(parameter);
    numbers.push_back(i);
  }
  const auto found = torch::autograd::grad({root},
                                           own,
                                           {gradient},
                                           /*retain_graph=*/std::nullopt,
                                           /*create_graph=*/false,
                                           /*allow_unused=*/true);
  std::vector<at::Tensor>& sums = lane_gradients_[static_cast<size_t>(lane) - 1];
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (found[i].defined()) add_to(sums[numbers[i]], found[i]);
  }
}

at::Tensor TrainedPart::evaluate(int64_t batch, const ChunkLoss& loss_of) const {
  const torch::NoGradGuard no_grad;
  const LanePlan planned = dalle2::plan_lanes(settings, batch);
  const std::vector<ChunkRange> ranges = chunk_ranges(batch, planned.max_batch_size);
  std::vector<at::Tensor> losses(ranges.size());
  in_lanes(planned.lanes, ranges.size(), [&](int64_t /*lane*/, size_t i) {
    const double fraction = static_cast<double>(ranges[i].length) / static_cast<double>(batch);
    const Autocast autocast(settings.device.type(), settings.precision);
    losses[i] = loss_of(ranges[i]) * fraction;
  });
  at::Tensor total;
  for (const at::Tensor& each : losses) add_to(total, each);
  return total;
}

void TrainedPart::connect(ProcessGroup& group,
                          const ExchangeOptions& options,
                          const ShardOptions& sharding) {
  if (group.is_alone()) return;
  group_ = &group;
  graphs.reset();
  half_weights.reset();  // a broadcast changes the weights behind autograd's back
  exchange_options_ = options;
  group.broadcast(parameters.values(),
                  "weights of " + (plan.name.empty() ? "the network" : plan.name));
  std::vector<ExchangeEntry> entries;
  for (const FlatEntry& entry : parameters.parameters()) {
    entries.push_back({entry.offset, entry.numel, entry.tensor.requires_grad()});
  }
  if (sharding.shard_optimizer) {
    shards =
        std::make_unique<RankShards>(group, parameters.values().numel(), sharding.scratch_path);
  }
  if (shards && sends_to_owners(group, parameters.parameter_span(), options.bucket_bytes)) {
    for (const FlatSlice& slice : shards->slices()) {
      exchange_options_.owner_ends.push_back(std::min(slice.end, parameters.parameter_span()));
    }
  }
  exchange = std::make_unique<GradientExchange>(
      group, gradients.values(), entries, exchange_options_, plan.name);
  gradients.set_listener([this](size_t parameter) { exchange->ready(parameter); });
  if (!shards) return;
  optimizer.keep_slice(shards->own());
  if (average) average->shard(*shards);
  if (post_hoc) post_hoc->shard(*shards);
}

void TrainedPart::share_weights() {
  if (!shards) return;
  const torch::NoGradGuard no_grad;
  shards->share(parameters.values(), "updated weights");
  torch::autograd::impl::bump_version(parameters.values());  // the others' slices are new, too
}

FlatMoments TrainedPart::whole_moments() const {
  const FlatMoments& own = optimizer.moments();
  if (!shards) return own;
  const int64_t span = parameters.parameter_span();
  return {shards->gather_to_file(own.exp_avg, span, "first moments"),
          shards->gather_to_file(own.exp_avg_sq, span, "second moments")};
}

bool TrainedPart::any_rank(bool own, const char* what) const {
  return shards ? shards->group().any(own, what) : own;
}

/// Gradients, losses, and which parameters have a gradient at all: what one process with the
/// batches of all ranks would have.
void TrainedPart::combine_ranks() {
  gradients.values();
  exchange->finish();
  if (!loss.defined()) loss = at::zeros({}, parameters.values().options());
  group_->all_reduce(loss, Reduction::kSum, "loss");
  const bool first = received_.empty();
  if (first || !exchange_options_.static_graph) {
    received_ = gradients.received();
    group_->any(received_, "parameters with a gradient");
  }
  if (first) check_received();
  gradients.set_received(received_);
}

/// Names the parameters that have no gradient on any rank.
void TrainedPart::check_received() {
  std::string unused;
  for (size_t i = 0; i < received_.size(); ++i) {
    const FlatEntry& entry = parameters.parameters()[i];
    if (!received_[i] && entry.tensor.requires_grad()) unused += "\n  " + plan.prefix + entry.name;
  }
  if (unused.empty()) return;
  if (!exchange_options_.unused_is_error && !group_->is_main()) return;  // rank 0 says it for all
  if (exchange_options_.unused_is_error) {
    throw ConfigError(
        "/train/find_unused_parameters is false, and the loss does not depend on these "
        "parameters:{}\n  Set it to true to train the others anyway.",
        unused);
  }
  log_info(
      "train", "the loss does not depend on these parameters, which keep their values:{}", unused);
}

/// The same bits with slices and without: each row has its norm from the rank that has its sums, and
/// that number plus zeros is that number.
at::Tensor TrainedPart::norm_of_gradients() {
  const at::Tensor& flat = gradients.values();
  if (!shards) return dalle2::grad_norm(flat);
  const FlatSlice own = shards->own().overlap({0, flat.numel()});
  const at::Tensor norms = at::zeros({flat.numel() / kFlatRow}, flat.options());
  if (own.length() > 0) {
    norms.narrow(0, own.begin / kFlatRow, own.length() / kFlatRow).copy_(row_norms(own.of(flat)));
  }
  group_->all_reduce(norms, Reduction::kSum, "norms of the gradients");
  return norm_of_rows(norms);
}

void TrainedPart::update(double lr) {
  const torch::NoGradGuard no_grad;
  if (exchange) combine_ranks();
  grad_norm = norm_of_gradients();
  if (scaler) grad_norm = grad_norm / scaler->scale();
  const at::Tensor found_inf = find_inf(grad_norm, loss);
  at::Tensor divisor = clip_divisor(grad_norm, plan.options.max_grad_norm);
  if (scaler) divisor = divisor * scaler->scale();
  update_weights(lr, divisor, found_inf);
  if (plan.after_step) plan.after_step();
  if (scaler) scaler->update(found_inf);
  gradients.zero_grad();
  last_loss = loss;
  loss.reset();
  was_skipped = found_inf;
  outcome.post(found_inf);
}

/// On the CPU in one pass over memory with what follows the weights.
void TrainedPart::update_weights(double lr,
                                 const at::Tensor& divisor,
                                 const at::Tensor& found_inf) {
  UpdateCompanions companions;
  if (const auto share = fused_average_share()) {
    companions.average = average->values().narrow(0, 0, parameters.parameter_span());
    companions.average_weight = *share;
  }
  const bool has_halves = updates_companions() && half_weights && half_weights->is_fresh() &&
                          half_weights->values().scalar_type() == at::kBFloat16;
  if (has_halves) companions.halves = half_weights->values();
  optimizer.step(gradients, lr, divisor, found_inf, companions);
  if (has_halves) half_weights->are_fresh();
}

/// The share of the weights in their average, where update() makes that; the buffers' average, and every
/// other, is made by average_weights().
std::optional<double> TrainedPart::fused_average_share() const {
  return average && updates_companions() ? average->share_of_next() : std::nullopt;
}

void TrainedPart::average_weights() {
  D2_CHECK(outcome.pending(), "averages follow an update before it is settled");
  const bool host_knows = was_skipped.is_cpu();
  if (host_knows && *was_skipped.const_data_ptr<float>() != 0) return;
  const at::Tensor skipped_on_device = host_knows ? at::Tensor() : was_skipped;
  if (average) average->update(skipped_on_device, fused_average_share().has_value());
  if (post_hoc) post_hoc->update(skipped_on_device);
}

bool TrainedPart::settle() {
  if (!outcome.pending()) return false;
  if (!outcome.take()) {
    ++skipped.total;
    ++skipped.in_a_row;
    return false;
  }
  skipped.in_a_row = 0;
  optimizer.count_update();
  if (average) average->count();
  if (post_hoc) post_hoc->count();
  return true;
}

void TrainedPart::begin_averages_anew() {
  if (average) average->begin_anew();
  if (post_hoc) post_hoc->begin_anew();
}

std::optional<std::string> TrainedPart::non_finite_kind() const {
  if (!all_finite(parameters.values())) return "weights";
  if (any_rank(!optimizer.is_finite(), "moments that are not finite")) {
    return "moments of the optimizer";
  }
  const bool averages_are_finite =
      (!average || average->is_finite()) && (!post_hoc || post_hoc->is_finite());
  if (any_rank(!averages_are_finite, "averages that are not finite")) return "averaged weights";
  return std::nullopt;
}

void UpdateOutcome::post(const at::Tensor& found_inf) {
  pending_ = true;
  const at::Device device = found_inf.device();
  if (device.is_cpu()) {
    flag_ = found_inf;
    return;
  }
  if (!passed_) {
    flag_ = at::empty({}, at::dtype(at::kFloat).pinned_memory(true));
    passed_.emplace(device.type());
  }
  flag_.copy_(found_inf, /*non_blocking=*/true);
  passed_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool UpdateOutcome::take() {
  D2_CHECK(pending_, "an outcome was asked for before an update");
  if (passed_) passed_->synchronize();
  pending_ = false;
  return *flag_.const_data_ptr<float>() == 0.0F;
}

}  // namespace dalle2
