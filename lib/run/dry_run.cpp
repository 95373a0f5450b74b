// SPDX-License-Identifier: MIT
// What the dry runs of all kinds share.
#include "run/dry_run.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "base/this_process.h"
#include "checkpoint/convert.h"
#include "checkpoint/module_state.h"
#include "data/pictures/preprocess.h"
#include "io/files/writable.h"
#include "model/lora.h"
#include "optim/pass_graphs.h"
#include "optim/precision.h"
#include "run/checkpoints/model_weights.h"
#include "run/loop/run_session.h"
#include "trainer/lanes.h"

namespace dalle2 {
namespace {

constexpr int64_t kBytesPerValue = 4;

/// Bytes of the tensors that this thread makes while it is looked at.
class TensorBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/,
                         int64_t bytes,
                         size_t /*total_allocated*/,
                         size_t /*total_reserved*/,
                         c10::Device /*device*/) override {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t held_ = 0, peak_ = 0;
};

/// Averages of the weights, in copies.
int64_t average_copies(const SharedTrainConfig& train) {
  return (train.use_ema ? 1 : 0) + (train.post_hoc_ema.save_every_n_steps
                                        ? static_cast<int64_t>(train.post_hoc_ema.sigmas.size())
                                        : 0);
}

bool is_of_part(const DryRunPlan& plan, const std::string& name, bool trained) {
  return std::ranges::any_of(plan.networks, [&](const auto& network) {
    return (network.module != nullptr) == trained && name.starts_with(network.prefix);
  });
}

/// Stages that are not trained and would go into the run's files as they are.
void check_carried(const StateDict& weights, const std::string& path, DryRunPlan& plan) {
  for (const DryRunPlan::Network& network : plan.networks) {
    if (network.module) continue;
    const StateDict given = strip_prefix(weights, network.prefix);
    if (given.empty()) continue;
    const auto made = network.make();
    load_state_dict(*made, given, "", /*strict=*/!has_lora(given), path + ": " + network.label);
    plan.carried_bytes += count_parameters(*made).bytes;
  }
}

/// Checks a loader's file as a start would.
void check_loaded_file(const std::string& path,
                       DryRunPlan& plan,
                       const SharedTrainConfig& train,
                       RunPosition& position) {
  const Value checkpoint = read_checkpoint(path);
  const Cursor root(checkpoint, path);
  check_kind(root, plan.texts.kind);
  StateDict weights = model_weights(root, plan.texts.kind, /*use_ema=*/false);
  const bool takes_new_adapters = train.lora.rank > 0 && !has_lora(root);
  const bool is_base = takes_new_adapters || is_weights_alone(root);
  const auto has = std::bind_front(is_of_part, std::cref(plan));
  const bool only_carries = train.lora.rank == 0 && held_stages(root, has).only_untrained();
  if (only_carries || is_base) {
    check_same_model(root, plan.texts, train.allow_changed_config);
  } else {
    compare_config(root, plan.texts, plan.data_size, train.allow_changed_config);
    read_position(position, root);
    warn_if_nothing_is_left(position, train.epochs, path);
  }
  check_carried(weights, path, plan);
  if (!only_carries) {
    std::erase_if(weights, [&](const auto& entry) { return has(entry.first, false); });
    if (takes_new_adapters) {
      for (auto& adapter : lora_state_dict(*plan.model)) weights.push_back(std::move(adapter));
    }
    load_state_dict(*plan.model, weights, "", /*strict=*/!takes_new_adapters, path);
    check_finite(*plan.model, path);
  }
  print_line("would load: {}", path);
}

/// "arithmetic: float32, TF32 in convolutions"
void print_arithmetic(const SharedTrainConfig& train, const at::Device& device) {
  const PrecisionChoice chosen =
      choose_precision(train.mixed_precision, train.amp, half_precision_support(device));
  const std::string tf32 = tf32_text(train.tf32, device);
  const std::string_view name =
      chosen.precision == MixedPrecision::no
          ? "float32"
          : enum_names<MixedPrecision>[static_cast<size_t>(chosen.precision)];
  print_line("arithmetic: {}{}{}", name, tf32.empty() ? "" : ", ", tf32);
}

/// Gradients of the lanes beside the first.
int64_t lane_bytes(const DryRunPlan& plan, const SharedTrainConfig& train) {
  int64_t most = 0;
  for (const DryRunPlan::Network& network : plan.networks) {
    if (!network.module) continue;
    const int64_t bytes = count_parameters(*network.module).trained_bytes;
    const PassSettings settings{.device = at::kCPU, .max_batch_size = train.max_batch_size};
    const LanePlan found = plan_lanes(settings, plan.batch_size, bytes);
    most = std::max(most, (found.lanes - 1) * bytes);
  }
  return most;
}

/// @throws ConfigError if the processes need more memory than there is @param peak of one of them
void check_memory(uint64_t peak, const at::Device& device, int64_t processes) {
  const bool on_cpu = device.is_cpu();
  const uint64_t there =
      on_cpu ? machine_memory() : at::accelerator::getMemoryInfo(device.index()).second;
  const uint64_t needed = on_cpu ? peak * static_cast<uint64_t>(processes) : peak;
  if (there == 0 || needed <= there) return;
  throw ConfigError(
      "{} would take about {}, and {} has {}\n  Lower /data/batch_size, set /train/max_batch_size "
      "to pass a batch in parts{}, or make the network smaller.",
      on_cpu ? counted(processes, "process", "processes") : "a GPU",
      human_bytes(needed),
      on_cpu ? "this machine" : device.str(),
      human_bytes(there),
      on_cpu && processes > 1 ? ", start fewer processes" : "");
}

/// A save writes the new checkpoint beside the old one.
void check_disk(const std::string& data_path, uint64_t checkpoint_bytes) {
  const uint64_t left = free_disk_bytes(data_path).value_or(checkpoint_bytes);
  if (left >= checkpoint_bytes) return;
  throw ConfigError(
      "/tracker/data_path: a checkpoint takes about {}, and the disk of '{}' has {} left\n  Make "
      "room there, or choose a data_path on another disk.",
      human_bytes(checkpoint_bytes),
      data_path,
      human_bytes(left));
}

void print_networks(const DryRunPlan& plan, const SharedTrainConfig& train) {
  for (const DryRunPlan::Network& network : plan.networks) {
    if (!network.module) {
      print_line("{}: not trained, takes no memory", network.label);
      continue;
    }
    print_line("{}: {} parameters{}{}",
               network.label,
               with_commas(count_parameters(*network.module).total),
               network.note.empty() ? "" : ", ",
               network.note);
  }
  const ParameterCount all = count_parameters(*plan.model);
  if (plan.networks.size() > 1) print_line("all networks: {} parameters", with_commas(all.total));
  if (train.lora.rank == 0) return;
  print_line("adapters of rank {}: {} parameters are trained, the others are frozen",
             train.lora.rank,
             with_commas(all.training));
}

}  // namespace

int64_t peak_tensor_bytes(const std::function<void()>& work) {
  const auto bytes = std::make_shared<TensorBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  work();
  return bytes->peak();
}

/// The peak grows by the sample once activations decide it: below that it is the same.
uint64_t activation_bytes(const DryRunPlan::Network& network,
                          const DryRunPlan& plan,
                          const SharedTrainConfig& train) {
  constexpr int64_t kMostTried = 32;
  const int64_t batch = std::min(plan.batch_size, train.max_batch_size.value_or(plan.batch_size));
  const auto peak_of = [&](int64_t samples) {
    const int64_t peak = peak_tensor_bytes([&] { network.step(samples); });
    sign_of_life();  // other ranks may wait for this one
    return peak;
  };
  // Makes the gradients, and what the network keeps of its last batch. This step is looked at too: LibTorch warns
  // of memory that is given back later and of which it does not know the size.
  peak_of(1);
  int64_t size = 1, peak = peak_of(size), per_sample = 0;
  for (bool is_line = false; size < batch && size < kMostTried && !is_line; size *= 2) {
    const int64_t next = peak_of(2 * size);
    // A stretch that begins flat and ends rising is no measure of the rise.
    is_line = next > peak && (size == 1 || per_sample > 0);
    per_sample = std::max<int64_t>(next - peak, 0) / size;
    peak = next;
  }
  network.module->zero_grad();
  return static_cast<uint64_t>(peak + std::max<int64_t>(batch - size, 0) * per_sample);
}

uint64_t PeakMemory::peak() const {
  uint64_t most = 0;
  for (const uint64_t bytes : activation_bytes) most = std::max(most, bytes);
  return kept_bytes + most;
}

PeakMemory peak_memory(const DryRunPlan& plan, const SharedTrainConfig& train, bool on_cpu) {
  const ParameterCount parameters = count_parameters(*plan.model);
  const uint64_t program = process_memory("VmRSS") - static_cast<uint64_t>(parameters.bytes);
  const uint64_t code = process_memory("RssFile");
  PeakMemory found;
  for (const DryRunPlan::Network& network : plan.networks) {
    found.activation_bytes.push_back(network.module ? activation_bytes(network, plan, train) : 0);
  }
  const uint64_t more_code = std::max(process_memory("RssFile"), code) - code;  // that steps load
  const bool offloads = train.use_ema && train.ema.offload && !on_cpu;
  const int64_t averages = average_copies(train) - (offloads ? 1 : 0);
  // Each network's weights stay in half precision, too (HalfWeights), if steps compute in it.
  const bool is_half =
      train.mixed_precision ? *train.mixed_precision != MixedPrecision::no : train.amp;
  const int64_t halves = is_half && !train.shard_optimizer ? parameters.trained_bytes / 2 : 0;
  const int64_t of_lanes = on_cpu && plan.has_lanes ? lane_bytes(plan, train) : 0;
  const int64_t state =
      parameters.bytes + (3 + averages) * parameters.trained_bytes + halves + of_lanes;
  // Saving in the background holds a checkpoint and a model file besides.
  const int64_t saved = on_cpu && train.async_save
                            ? 2 * parameters.bytes + (2 + averages) * parameters.trained_bytes
                            : 0;
  found.kept_bytes = (on_cpu ? program + more_code : 0) + static_cast<uint64_t>(state + saved);
  return found;
}

void print_steps(int64_t epoch_samples, int64_t batch_size, const SharedTrainConfig& train) {
  const int64_t per_step = batch_size * train.grad_accum_every;
  const int64_t steps = (epoch_samples + per_step - 1) / per_step;
  print_line("samples per epoch: {}\nsteps: {} per epoch, {} in {}",
             with_commas(epoch_samples),
             with_commas(steps),
             with_commas(steps * train.epochs),
             counted(train.epochs, "epoch"));
}

void print_pictures(const PictureTally& pictures, const DecodeOptions& options) {
  for (const std::string& line : pictures.describe(options)) {
    print_line("of the first {}: {}", counted(pictures.looked_at, "training picture"), line);
  }
}

void print_shards(ShardData& data,
                  const ShardPosition& position,
                  const ShardLoopConfig& loop,
                  const SharedTrainConfig& train,
                  int64_t processes) {
  if (const int64_t slices = position.slices_of_run(); slices > 0) data.deal(slices);
  int64_t train_samples = 0;
  PictureTally pictures;
  for (const char* split : {"train", "val", "test"}) {
    DropCounts dropped;
    const bool trains = std::string(split) == "train";
    const int64_t samples = data.count_samples(split, dropped, trains ? &pictures : nullptr);
    if (trains) train_samples = samples;
    print_line("{}: {} in {}{}",
               split,
               counted(samples, "sample"),
               counted(data.num_shards(split), "shard"),
               dropped.empty() ? "" : "; " + describe_drops(dropped));
  }
  print_pictures(pictures, data.reading());
  const bool draws_without_end = data.config().resample_train && train_samples > 0;
  if (draws_without_end && !loop.epoch_samples) {
    print_line("samples per epoch: without end (resample_train without /train/epoch_samples)");
    return;
  }
  int64_t samples = loop.epoch_samples.value_or(train_samples);
  if (!draws_without_end) samples = std::min(samples, train_samples);
  print_steps(samples, data.config().batch_size * processes, train);
}

void print_sizes(const DryRunPlan& plan,
                 const SharedTrainConfig& train,
                 const at::Device& device,
                 int64_t processes) {
  const ParameterCount parameters = count_parameters(*plan.model);
  // Live weights, two moments, averages. An average also saves the live weights, but those are
  // stored only once.
  const int64_t checkpoint = parameters.bytes +
                             (2 + average_copies(train)) * parameters.trained_bytes +
                             plan.carried_bytes;
  print_line(
      "checkpoint: about {}, model file: about {}",
      human_bytes(static_cast<uint64_t>(checkpoint)),
      human_bytes(static_cast<uint64_t>(parameters.total * kBytesPerValue + plan.carried_bytes)));
  check_disk(plan.data_path, static_cast<uint64_t>(checkpoint));
  print_arithmetic(train, device);
  if (plan.cuda_graph) {
    if (const auto fault = PassGraphs::fault_of(device, processes))
      log_warning("train", "{}", *fault);
  }
  const bool on_cpu = device.is_cpu();
  PeakMemory memory = peak_memory(plan, train, on_cpu);
  if (plan.fit_budget) {
    for (const std::string& line : plan.fit_budget(memory)) print_line("{}", line);
  }
  const uint64_t peak = memory.peak();
  print_line("peak memory of {} {}: about {}",
             processes == 1 ? "the" : "each",
             on_cpu ? "process" : "GPU",
             human_bytes(peak));
  check_memory(peak, device, processes);
  print_line("nothing was trained or written (--dry-run)");
}

void finish_dry_run(DryRunPlan& plan,
                    const TrackerConfig& tracker_config,
                    const SharedTrainConfig& train,
                    RunPosition& position,
                    int64_t processes,
                    const std::function<void()>& print_data) {
  const at::Device device = prepare_device(train);
  plan.data_path = tracker_config.data_path;
  {
    Tracker tracker(tracker_config,
                    position_placeholders(position),
                    /*dummy=*/false,
                    read_saved_facts,
                    plan.start);
    tracker.describe({.config = plan.texts.full_json});
    const StartPlan& start = tracker.look();
    const StartRule& rule = rule_of(start.action);
    log_info("track", "{}: {}: a start {}", plan.data_path, rule.folder, rule.does);
    check_readable(start.files);
    const auto loaded = take_first(start, plan.data_path, [&](const std::string& path) {
      check_loaded_file(path, plan, train, position);
    });
    if (!loaded && train.lora.rank > 0) throw_no_base(plan.texts.kind);
  }
  print_networks(plan, train);
  print_data();
  print_sizes(plan, train, device, processes);
}

}  // namespace dalle2
