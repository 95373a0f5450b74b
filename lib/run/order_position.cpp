// SPDX-License-Identifier: MIT
#include "run/order_position.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/convert.h"
#include "checkpoint/value_json.h"
#include "io/atomic_file.h"
#include "net/url.h"
#include "run/loader_state.h"

namespace dalle2 {
namespace {

constexpr const char* kSplit = "train";
/// With replacement more shards may be drawn than there are; each costs a draw when the epoch is
/// taken up.
constexpr int64_t kMostDraws = 1'000'000'000;

/// The keys of a config that decide what a position means, as in /config of a checkpoint.
std::vector<std::pair<const char*, Value>> deciding_keys(const TrainDecoderConfig& config) {
  const DecoderDataConfig& data = config.data;
  return {{"seed", config.seed},
          {"data/shuffle_train", data.shuffle_train},
          {"data/resample_train", data.resample_train},
          {"data/splits/train", data.splits.train},
          {"data/splits/val", data.splits.val},
          {"data/splits/test", data.splits.test}};
}

/// The entry at "data/splits/val", or none. @param required an absent one is an error
std::optional<Cursor> find_path(Cursor at, const std::string& path, bool required) {
  for (size_t begin = 0; begin != std::string::npos;) {
    const size_t slash = path.find('/', begin);
    const std::string key = path.substr(begin, slash - begin);
    if (!required && !(at.value().is_dict() && at.has(key))) return std::nullopt;
    at = at.at(key);
    begin = slash == std::string::npos ? slash : slash + 1;
  }
  return at;
}

/// @param config_of_file its copy of the config, as far as it has one
void check_same_order(const Cursor& config_of_file,
                      const TrainDecoderConfig& config,
                      bool required) {
  for (const auto& [path, configured] : deciding_keys(config)) {
    const auto saved = find_path(config_of_file, path, required);
    if (!saved) continue;
    const bool same = configured.is_double()
                          ? saved->as_double() == configured.as_double()
                          : json_of_value(saved->value()) == json_of_value(configured);
    if (same) continue;
    throw ConfigError(
        "{}: expected {}, the config's /{}, got {}: the position belongs to another order of "
        "samples.\n  Give the config that it was saved with (--config, --set).",
        saved->where(),
        json_of_value(configured),
        path,
        json_of_value(saved->value()));
  }
  const auto batch_size = find_path(config_of_file, "data/batch_size", required);
  if (batch_size && batch_size->as_int() != config.data.batch_size) {
    log_warning("order",
                "{}: batches of {}, the config's /data/batch_size is {}: lanes keep their order, "
                "but have their turns for longer or shorter",
                batch_size->where(),
                batch_size->as_int(),
                config.data.batch_size);
  }
}

[[noreturn]] void refuse(const Cursor& entry, const std::string& expected, int64_t got) {
  throw DataError("{}: expected {}, got {}", entry.where(), expected, got);
}

int64_t count_at(const Cursor& saved, const char* key) {
  const int64_t count = saved.at(key).as_int();
  if (count < 0) refuse(saved.at(key), "0 or more", count);
  return count;
}

/// A position that can be of some epoch; which shards it is of is not looked at.
LoaderPosition sound_position(const Cursor& saved, bool resample) {
  LoaderPosition position = loader_position_of(saved);
  const int64_t lanes = static_cast<int64_t>(position.lanes.size());
  if (position.next_lane < 0 || position.next_lane >= std::max<int64_t>(lanes, 1)) {
    refuse(saved.at("next_lane"), fmt::format("one of {} lanes", lanes), position.next_lane);
  }
  for (size_t i = 0; i < position.lanes.size(); ++i) {
    const LanePosition& lane = position.lanes[i];
    const Cursor entry = saved.at("lanes").at(i);
    const int64_t most = !resample && lane.shards > 0 ? lane.shards : kMostDraws;
    if (lane.window_start.shard > most) {
      refuse(entry.at("shard"), fmt::format("{} or less", most), lane.window_start.shard);
    }
    if (lane.window_samples == 0) continue;
    if (!lane.window_start.is_before(lane.window_end)) {
      refuse(entry.at("end_shard"), "a place behind \"shard\"", lane.window_end.shard);
    }
    if (lane.passed > lane.window_samples) {
      refuse(entry.at("passed"), fmt::format("{} or less", lane.window_samples), lane.passed);
    }
  }
  return position;
}

OrderPosition position_of_json(const std::string& path, const TrainDecoderConfig& config) {
  Value root;
  try {
    root = value_of_json(read_file(path));
  } catch (const DataError& error) {
    throw DataError("{}: no position of `shards order --save`: {}", path, error.what());
  }
  const Cursor saved(root, path);
  if (const std::string split = saved.at("split").as_string(); split != kSplit) {
    throw ConfigError("{}: expected \"{}\", got \"{}\"", saved.at("split").where(), kSplit, split);
  }
  check_same_order(saved.at("config"), config, /*required=*/true);
  return {.epoch = count_at(saved, "epoch"),
          .samples = count_at(saved, "samples"),
          .loader = sound_position(saved.at("position"), config.data.resample_train),
          .shard_names = saved.at("shard_names").as_string()};
}

OrderPosition position_of_checkpoint(const std::string& path, const TrainDecoderConfig& config) {
  const Value root = read_checkpoint(path);
  const Cursor saved(root, path);
  if (!saved.value().is_dict() || !saved.has("epoch")) {
    throw DataError(
        "{}: no position: expected a run's checkpoint, with an entry \"epoch\", or a position of "
        "`shards order --save`. Model files do not say where a run stood",
        path);
  }
  if (const auto own = saved.find("config")) check_same_order(*own, config, /*required=*/false);
  OrderPosition position;
  position.epoch = count_at(saved, "epoch");
  if (saved.has("next_task") && saved.at("next_task").as_string() != "train") {
    ++position.epoch;
    return position;
  }
  if (saved.has("sample")) position.samples = count_at(saved, "sample");
  if (const auto own = saved.find(kOwnState)) {
    position.loader = sound_position(own->at("loader_position"), config.data.resample_train);
  } else if (position.samples > 0) {  // the reference's checkpoints count samples only
    position.loader = LoaderPosition::after_samples(position.samples);
  }
  return position;
}

}  // namespace

OrderPosition read_order_position(const std::string& path, const TrainDecoderConfig& config) {
  if (!std::filesystem::is_regular_file(path)) {
    throw ConfigError("{}: no such file (--from, relative to {})",
                      path,
                      std::filesystem::current_path().string());
  }
  return path.ends_with(".json") ? position_of_json(path, config)
                                 : position_of_checkpoint(path, config);
}

void check_same_shards(const std::string& path,
                       const OrderPosition& position,
                       const ShardUrls& urls) {
  const std::vector<LanePosition>& lanes = position.loader.lanes;
  const int64_t count = static_cast<int64_t>(lanes.size());
  const int64_t shards = static_cast<int64_t>(urls.size());
  for (int64_t lane = 0; lane < count; ++lane) {
    const int64_t now = (lane + 1) * shards / count - lane * shards / count;
    const int64_t then = lanes[static_cast<size_t>(lane)].shards;
    if (then == 0 || then == now) continue;
    throw ConfigError(
        "{}: the position is of other shards: lane {} of {} had {} of them, and would have {} of "
        "the config's {} training shards.\n"
        "  A run that goes on with other shards begins the epoch anew.",
        path,
        lane,
        count,
        then,
        now,
        shards);
  }
  if (!position.shard_names.empty() && position.shard_names != shard_names_hash(urls)) {
    throw ConfigError(
        "{}: /shard_names: the position is of other shards: the names of the config's {} training "
        "shards ({} ...) give {}, the file has {}.\n"
        "  Give the config that it was saved with (/data/webdataset_base_url, /data/start_shard).",
        path,
        shards,
        public_url(urls.front()),
        shard_names_hash(urls),
        position.shard_names);
  }
}

void write_order_position(const std::string& path,
                          const OrderPosition& position,
                          const TrainDecoderConfig& config) {
  Dict splits, data, of_config, out;
  splits.set("train", config.data.splits.train);
  splits.set("val", config.data.splits.val);
  splits.set("test", config.data.splits.test);
  data.set("shuffle_train", config.data.shuffle_train);
  data.set("resample_train", config.data.resample_train);
  data.set("batch_size", config.data.batch_size);
  data.set("splits", std::move(splits));
  of_config.set("seed", config.seed);
  of_config.set("data", std::move(data));
  out.set("split", kSplit);
  out.set("epoch", position.epoch);
  out.set("samples", position.samples);
  out.set("shard_names", position.shard_names);
  out.set("config", std::move(of_config));
  out.set("position", value_of(position.loader));
  write_file_atomically(path, json_of_value(out, /*indent=*/2) + "\n");
}

std::string shard_names_hash(const ShardUrls& urls) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, 64 bits
  for (size_t i = 0; i < urls.size(); ++i) {
    const std::string url = public_url(urls[i]);
    const size_t slash = url.rfind('/');
    for (const char c : url.substr(slash == std::string::npos ? 0 : slash + 1) + '\n') {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace dalle2
