// SPDX-License-Identifier: MIT
// `shards order`: the training samples of each rank, in the order in which a run takes them.
#include <cstdint>
#include <cstdio>
#include <filesystem>
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
#include "data/loader/rank_walk.h"
#include "io/files/atomic_file.h"
#include "run/checkpoints/model_weights.h"
#include "run/commands.h"
#include "run/commands/out_folder.h"
#include "run/decoder/decoder_data.h"
#include "run/shards/shard_position.h"

namespace dalle2 {
namespace {

/// The keys of a config that decide what a position means, beside /seed.
std::vector<std::pair<const char*, Value>> deciding_data_keys(const TrainDecoderConfig& config) {
  const ShardDataConfig& data = config.data;
  Dict splits;
  splits.set("train", data.splits.train);
  splits.set("val", data.splits.val);
  splits.set("test", data.splits.test);
  return {{"shuffle_train", data.shuffle_train},
          {"resample_train", data.resample_train},
          {"splits", std::move(splits)}};
}

void check_same(const Cursor& saved, const char* pointer, const Value& configured) {
  const std::string now = json_of_value(configured), then = json_of_value(saved.value());
  if (now == then) return;
  throw ConfigError(
      "{}: expected {}, the config's /{}, got {}: the position belongs to another order of "
      "samples.\n  Give the config that it was saved with (--config, --set).",
      saved.where(),
      now,
      pointer,
      then);
}

/// @param of_file its copy of the config; what it does not say is not compared
void check_same_order(const Cursor& of_file, const TrainDecoderConfig& config) {
  if (const auto seed = of_file.find("seed")) check_same(*seed, "seed", config.seed);
  const std::optional<Cursor> data = of_file.find("data");
  if (!data) return;
  for (const auto& [key, configured] : deciding_data_keys(config)) {
    if (const auto saved = data->find(key)) {
      check_same(*saved, fmt::format("data/{}", key).c_str(), configured);
    }
  }
  const auto batch_size = data->find("batch_size");
  if (!batch_size || batch_size->as_int() == config.data.batch_size) return;
  log_warning(
      "order",
      "{}: batches of {}, the config's /data/batch_size is {}: lanes keep their order, but their "
      "turns become longer or shorter",
      batch_size->where(),
      batch_size->as_int(),
      config.data.batch_size);
}

/// Reads a position: a file of --save, or a run's checkpoint, whose entries the former has as far as they
/// concern the order. A checkpoint made after the training of its epoch stands for the beginning of
/// the next one.
/// @throws DataError naming file and entry for what is damaged; ConfigError if the file says that
/// another seed, order or split of the shards decides what its position means
ShardPosition read_order_position(const std::string& path, const TrainDecoderConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw ConfigError(
        "{}: {} (--from, relative to {})",
        path,
        std::filesystem::exists(path, ignored) ? "not a regular file" : "no such file",
        std::filesystem::current_path().string());
  }
  const Value root = read_checkpoint_outline(path);
  const Cursor saved(root, path);
  if (!saved.value().is_dict() || !saved.has("epoch")) {
    throw DataError(
        "{}: not a position: expected a run's checkpoint, with an entry \"epoch\", or a position "
        "of `shards order --save`. Model files do not say where a run stood",
        path);
  }
  check_kind(saved, TrainDecoderConfig::kKind);
  if (const auto of_file = saved.find("config")) check_same_order(*of_file, config);
  ShardPosition position;
  read_position(position, saved);
  if (position.next_task != "train") {
    position.restart_epoch();
    position.next_task = "train";
    ++position.epoch;
  }
  return position;
}

/// Writes the position whole or not at all, with the part of the config that decides its meaning.
void write_order_position(const std::string& path,
                          ShardPosition& position,
                          const TrainDecoderConfig& config) {
  Dict own, data, of_config, out;
  for (auto& [key, value] : position_entries(position, own)) out.set(key, std::move(value));
  out.set(kOwnState, std::move(own));
  for (auto& [key, value] : deciding_data_keys(config)) data.set(key, std::move(value));
  data.set("batch_size", config.data.batch_size);
  of_config.set("seed", config.seed);
  of_config.set("data", std::move(data));
  out.set("config", std::move(of_config));
  write_pth(path, out);
}

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
