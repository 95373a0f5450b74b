// SPDX-License-Identifier: MIT
// `shards order`: the training samples of each rank, in the order in which a run takes them.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/convert.h"
#include "data/loader/rank_walk.h"
#include "io/files/atomic_file.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "run/decoder/decoder_data.h"
#include "run/shards/order_position.h"

namespace dalle2 {
namespace {

/// What a rank got.
struct RankSummary {
  int64_t batches = 0, samples = 0, empty_steps = 0;
  std::string first, last;  // batches, as texts
};

/// What all ranks got.
struct Steps {
  std::vector<RankSummary> ranks;
  int64_t count = 0;
  bool epoch_over = false;
};

/// "000120042 ... 000120049"
std::string describe_keys(const std::vector<std::string>& keys) {
  const std::string first = printable(keys.front());
  return keys.size() == 1 ? first : fmt::format("{} ... {}", first, printable(keys.back()));
}

void add_step(const std::vector<Batch>& step, std::vector<RankSummary>& ranks) {
  for (size_t rank = 0; rank < step.size(); ++rank) {
    RankSummary& summary = ranks[rank];
    if (step[rank].size() == 0) {
      ++summary.empty_steps;
      continue;
    }
    summary.last = describe_keys(step[rank].keys);
    if (summary.batches == 0) summary.first = summary.last;
    ++summary.batches;
    summary.samples += step[rank].size();
  }
}

void print_step(int64_t epoch, int64_t number, const std::vector<Batch>& step) {
  nlohmann::ordered_json line;
  line["epoch"] = epoch;
  line["step"] = number;
  line["keys"] = nlohmann::ordered_json::array();
  for (const Batch& batch : step) line["keys"].push_back(batch.keys);
  // Keys come from tar files and may be no UTF-8.
  const std::string text =
      escaped_json(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  std::printf("%s\n", text.c_str());
  check_stdout();  // an epoch is long
}

void print_summary(const Steps& steps) {
  std::printf("%6s %9s %10s %12s   %s\n", "rank", "batches", "samples", "empty steps", "batches");
  RankSummary all;
  const auto row = [](const std::string& name, const RankSummary& rank, const std::string& keys) {
    std::printf("%6s %9s %10s %12s   %s\n",
                name.c_str(),
                with_commas(rank.batches).c_str(),
                with_commas(rank.samples).c_str(),
                with_commas(rank.empty_steps).c_str(),
                keys.c_str());
  };
  for (size_t rank = 0; rank < steps.ranks.size(); ++rank) {
    const RankSummary& own = steps.ranks[rank];
    const std::string keys = own.batches == 0   ? "none"
                             : own.batches == 1 ? own.first
                                                : own.first + ", to " + own.last;
    row(std::to_string(rank), own, keys);
    all.batches += own.batches;
    all.samples += own.samples;
    all.empty_steps += own.empty_steps;
  }
  row("all", all, "in " + counted(steps.count, "step"));
}

ShardPosition starting_position(const ShardsOrderCommand& command,
                                const TrainDecoderConfig& config) {
  ShardPosition position;
  if (!command.from_path) {
    position.epoch = command.epoch.value_or(0);
    return position;
  }
  position = read_order_position(*command.from_path, config);
  if (command.epoch && *command.epoch != position.epoch) {
    throw ConfigError("--epoch {}: {} is in epoch {}.\n  Leave --epoch out, or --from.",
                      *command.epoch,
                      *command.from_path,
                      position.epoch);
  }
  const size_t lanes = position.loader.lanes.size();
  log_info("order",
           "{}: epoch {}, {} passed{}",
           *command.from_path,
           position.epoch,
           counted(position.sample, "sample"),
           lanes == 0 ? ""
                      : fmt::format("; begun in {}, which it keeps",
                                    counted(static_cast<int64_t>(lanes), "lane")));
  return position;
}

void check_that_it_ends(const ShardsOrderCommand& command, const TrainDecoderConfig& config) {
  if (!config.data.resample_train || command.steps || config.train.epoch_samples) return;
  throw ConfigError(
      "--steps is missing: an epoch of shards drawn with replacement (/data/resample_train) has no "
      "end.\n  Give --steps N, or set /train/epoch_samples.");
}

LoadedDecoderConfig load_config(const ShardsOrderCommand& command) {
  std::error_code ignored;
  if (!std::filesystem::exists(command.config_path, ignored)) {
    throw ConfigError("{}: no such file (--config, relative to {})",
                      command.config_path,
                      std::filesystem::current_path().string());
  }
  LoadedDecoderConfig loaded =
      load_decoder_config(command.config_path, {.overrides = command.overrides});
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  check_that_it_ends(command, loaded.config);
  return loaded;
}

/// Takes the steps asked for, as many as a run would: /train/epoch_samples may end an epoch early.
Steps take_steps(const ShardsOrderCommand& command,
                 int64_t most_samples,
                 RankWalk& walk,
                 ShardPosition& position) {
  Steps steps;
  steps.ranks.resize(static_cast<size_t>(command.world));
  while (steps.count < command.steps.value_or(INT64_MAX)) {
    const auto step = position.sample < most_samples ? walk.next() : std::nullopt;
    steps.epoch_over = !step.has_value();
    if (!step) break;
    if (command.print) {
      print_step(position.epoch, steps.count, *step);
    } else {
      log_live(counted(steps.count, "step"));
    }
    for (const Batch& batch : *step) position.sample += batch.size();
    add_step(*step, steps.ranks);
    ++steps.count;
  }
  log_live("");
  position.loader = walk.position();
  return steps;
}

/// @throws ConfigError for a file that is there and is something else: a run's checkpoint, say
void check_is_position(const std::string& path) {
  bool is_position = false;
  try {
    const Value there = read_checkpoint_outline(path);
    const Cursor root(there, path);
    is_position = there.is_dict() && root.has(kOwnState) && !root.has("model");
  } catch (const DataError&) {  // no file of ours
  }
  if (is_position) return;
  throw ConfigError(
      "--save {}: this file exists, and is not a position of `shards order --save`\n  Choose "
      "another name; --from is the option that reads a checkpoint.",
      path);
}

/// Before an epoch is read, not after it.
void check_save_path(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw ConfigError("--save {}: is a folder; expected the name of a file, e.g. {}",
                      path,
                      (std::filesystem::path(path) / "position.pth").string());
  }
  check_out_folder("--save", path);
  if (std::filesystem::exists(path, ignored)) check_is_position(path);
  const AtomicFile can_be_written(path);
}

}  // namespace

void run_shards_order(const ShardsOrderCommand& command) {
  if (command.print) log_to_stderr();
  if (command.save_path) check_save_path(*command.save_path);
  const LoadedDecoderConfig loaded = load_config(command);
  const TrainDecoderConfig& config = loaded.config;
  ShardPosition position = starting_position(command, config);
  const int world = static_cast<int>(command.world);
  ShardData data(
      config.data, config.seed, decoder_needs(config, loaded.plan), RankInfo{0, world}, at::kCPU);
  // A run keeps the slices that it began with, see ShardPosition.
  position.slices = position.slices_of_run();
  if (position.slices == 0) position.slices = data.slices_at_begin();
  data.deal_into(position.slices);
  if (const auto why = data.other_shards(position.loader)) {
    throw ConfigError(
        "{}: the position belongs to other shards: {}\n  Give the config that it was saved with "
        "(/data/webdataset_base_url, /data/start_shard). A run that resumes with other shards "
        "starts the epoch over.",
        command.from_path.value_or(""),
        *why);
  }
  const LoaderOptions options = data.options("train", config.data.batch_size, /*in_order=*/false);
  log_info("order",
           "epoch {}: {}, {}, batches of {}",
           position.epoch,
           counted(static_cast<int64_t>(options.urls.size()), "training shard"),
           counted(world, "rank"),
           config.data.batch_size);

  RankWalk walk(config.data, options, world);
  walk.start_epoch(position.epoch, position.loader);
  const Steps steps =
      take_steps(command, config.train.epoch_samples.value_or(INT64_MAX), walk, position);
  if (!command.print) print_summary(steps);
  if (const DropCounts dropped = walk.dropped(); !dropped.empty()) {
    log_info("order", "left out: {}", describe_drops(dropped));
  }
  if (steps.epoch_over)
    log_info("order", "the epoch is over: {}", counted(position.sample, "sample"));
  if (command.save_path) {
    write_order_position(*command.save_path, position, config);
    log_info("order", "position after step {} saved: {}", steps.count, *command.save_path);
  }
}

}  // namespace dalle2
