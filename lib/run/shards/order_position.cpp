// SPDX-License-Identifier: MIT
#include "run/shards/order_position.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/pickle/value_json.h"
#include "run/checkpoints/model_weights.h"

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

}  // namespace

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

}  // namespace dalle2
