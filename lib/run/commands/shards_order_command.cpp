// SPDX-License-Identifier: MIT
// `shards order`: the training samples of each rank, in the order in which a run takes them.
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "data/loader/loader.h"
#include "io/files/atomic_file.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/decoder/decoder_data.h"
#include "run/shards/shard_position.h"

namespace dalle2 {
namespace {

using nlohmann::json;

/// The keys of a config that decide what a position means.
constexpr const char* kDeciding[] = {
    "/seed", "/data/shuffle_train", "/data/resample_train", "/data/splits"};

/// What the file does not say of its config is not compared.
void check_same_order(const Cursor& saved, const json& config) {
  const std::optional<Cursor> of_file = saved.find("config");
  const json then = of_file ? json::parse(json_of_value(of_file->value())) : json();
  for (const char* key : kDeciding) {
    const json::json_pointer at(key);
    if (!then.contains(at) || then[at] == config.at(at)) continue;
    throw ConfigError(
        "{}: /config{}: expected {}, the config's {}, got {}: the position belongs to another order of "
        "samples.\n  Give the config that it was saved with (--config, --set).",
        saved.where(),
        key,
        config.at(at).dump(),
        key,
        then[at].dump());
  }
}

/// Reads a position: a file of --save, or a run's checkpoint, whose entries the former has as far as they
/// concern the order. A checkpoint made after the training of its epoch stands for the beginning of
/// the next one.
/// @throws DataError for what is damaged; ConfigError for a position of another order
ShardPosition read_order_position(const std::string& path, const json& config) {
  const Value root = read_checkpoint_outline(path);
  const Cursor saved(root, path);
  if (!root.is_dict() || !saved.has("epoch")) {
    throw DataError(
        "{}: not a position: expected a run's checkpoint, with an entry \"epoch\", or a position "
        "of `shards order --save`. Model files do not say where a run stood",
        path);
  }
  check_kind(saved, TrainDecoderConfig::kKind);
  check_same_order(saved, config);
  ShardPosition position;
  read_position(position, saved);
  if (position.next_task != "train") {
    position.restart_epoch();
    position.next_task = "train";
    ++position.epoch;
  }
  log_info(
      "order", "{}: epoch {}, {} passed", path, position.epoch, counted(position.sample, "sample"));
  return position;
}

/// With the part of the config that decides its meaning.
void write_order_position(const std::string& path, ShardPosition& position, const json& config) {
  Dict own, out;
  for (auto& [key, value] : position_entries(position, own)) out.set(key, std::move(value));
  out.set(kOwnState, std::move(own));
  json kept;
  for (const char* key : kDeciding)
    kept[json::json_pointer(key)] = config.at(json::json_pointer(key));
  out.set("config", value_of_json(kept.dump()));
  write_pth(path, out);
}

/// What a rank got.
struct RankCounts {
  int64_t batches = 0, samples = 0, empty_steps = 0;
};

void print_step(int64_t epoch, int64_t number, const std::vector<Batch>& step) {
  nlohmann::ordered_json line = {{"epoch", epoch}, {"step", number}, {"keys", json::array()}};
  for (const Batch& batch : step) line["keys"].push_back(batch.keys);
  // Keys come from tar files and may be no UTF-8.
  const std::string text =
      escaped_json(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  std::printf("%s\n", text.c_str());
  check_stdout();  // an epoch is long
}

void print_table(const std::vector<RankCounts>& ranks, int64_t steps) {
  RankCounts all;
  const auto row = [](const std::string& name, const RankCounts& counts) {
    std::printf("%6s %9s %10s %12s\n",
                name.c_str(),
                with_commas(counts.batches).c_str(),
                with_commas(counts.samples).c_str(),
                with_commas(counts.empty_steps).c_str());
  };
  std::printf("%6s %9s %10s %12s\n", "rank", "batches", "samples", "empty steps");
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    row(std::to_string(rank), ranks[rank]);
    all.batches += ranks[rank].batches;
    all.samples += ranks[rank].samples;
    all.empty_steps += ranks[rank].empty_steps;
  }
  row("all", all);
  std::printf("%s\n", counted(steps, "step").c_str());
}

/// Takes the steps asked for, as many as a run would: /train/epoch_samples may end an epoch early.
void take_steps(const ShardsOrderCommand& command,
                const TrainDecoderConfig& config,
                RankWalk& walk,
                ShardPosition& position) {
  std::vector<RankCounts> ranks(static_cast<size_t>(command.world));
  int64_t steps = 0;
  for (; steps < command.steps.value_or(INT64_MAX); ++steps) {
    const bool is_over = position.sample >= config.train.epoch_samples.value_or(INT64_MAX);
    const auto step = is_over ? std::nullopt : walk.next();
    if (!step) {
      log_info("order", "the epoch is over: {}", counted(position.sample, "sample"));
      break;
    }
    if (command.print) print_step(position.epoch, steps, *step);
    for (size_t rank = 0; rank < step->size(); ++rank) {
      const int64_t samples = (*step)[rank].size();
      ++(samples > 0 ? ranks[rank].batches : ranks[rank].empty_steps);
      ranks[rank].samples += samples;
      position.sample += samples;
    }
  }
  position.loader = walk.position();
  if (!command.print) print_table(ranks, steps);
  const DropCounts dropped = walk.dropped();
  if (!dropped.empty()) log_info("order", "{}", describe_drops(dropped));
}

}  // namespace

void run_shards_order(const ShardsOrderCommand& command) {
  if (command.print) log_to_stderr();
  if (command.save_path) {  // before an epoch is read, not after it
    check_out_folder("--save", *command.save_path);
    check_new_file("--save", *command.save_path, command.overwrite);
    const AtomicFile can_be_written(*command.save_path);
  }
  const LoadedDecoderConfig loaded =
      load_decoder_config(command.config_path, {.overrides = command.overrides});
  for (const std::string& warning : loaded.warnings) log_warning("config", "{}", warning);
  const TrainDecoderConfig& config = loaded.config;
  if (config.data.resample_train && !command.steps && !config.train.epoch_samples) {
    throw ConfigError(
        "--steps is missing: an epoch of shards drawn with replacement (/data/resample_train) has no "
        "end.\n  Give --steps N, or set /train/epoch_samples.");
  }
  const json all = json::parse(loaded.full_json);
  ShardPosition position;
  position.epoch = command.epoch.value_or(0);
  if (command.from_path) position = read_order_position(*command.from_path, all);
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
           counted(std::ssize(options.urls), "training shard"),
           counted(world, "rank"),
           config.data.batch_size);
  RankWalk walk(config.data, options, world);
  walk.start_epoch(position.epoch, position.loader);
  take_steps(command, config, walk, position);
  if (!command.save_path) return;
  write_order_position(*command.save_path, position, all);
  log_info("order", "position saved: {}", *command.save_path);
}

}  // namespace dalle2
