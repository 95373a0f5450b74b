// SPDX-License-Identifier: MIT
#include "run/order_position.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "checkpoint/convert.h"
#include "checkpoint/value_json.h"
#include "io/atomic_file.h"
#include "io/url_file.h"
#include "run/loader_state.h"
#include "run/run_position.h"

namespace dalle2 {
namespace {

constexpr const char* kSplit = "train";
/// With replacement more shards may be drawn than there are; each costs a draw when the epoch is
/// resumed.
constexpr int64_t kMostDraws = 1'000'000'000;
// Beyond these a number is a mistake.
constexpr int64_t kMostEpochs = 1'000'000'000;
constexpr int64_t kMostSamples = int64_t{1} << 53;
constexpr int64_t kMostLanes = 4096;

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
  if (batch_size && batch_size->as_int() < 1) {
    throw DataError("{}: expected 1 or more, got {}", batch_size->where(), batch_size->as_int());
  }
  if (batch_size && batch_size->as_int() != config.data.batch_size) {
    log_warning("order",
                "{}: batches of {}, the config's /data/batch_size is {}: lanes keep their order, "
                "but have their turns for longer or shorter",
                batch_size->where(),
                batch_size->as_int(),
                config.data.batch_size);
  }
}

/// A count that a file gives, within limits.
int64_t count_at(const Cursor& saved, const char* key, int64_t most, int64_t least = 0) {
  const Cursor entry = saved.at(key);
  const int64_t count = entry.as_int();
  if (count < least || count > most) {
    throw DataError(
        "{}: expected a count from {} to {}, got {}", entry.where(), least, most, count);
  }
  return count;
}

/// @param samples of the epoch that have been read, over all lanes
void check_lane(const Cursor& entry, const LanePosition& lane, int64_t samples, bool resample) {
  const int64_t most_shards = !resample && lane.shards > 0 ? lane.shards : kMostDraws;
  count_at(entry, "shards", kMostDraws);
  count_at(entry, "shuffle_buffer", kMostSamples);
  count_at(entry, "shard", most_shards);
  count_at(entry, "sample", kMostSamples);
  count_at(entry, "bad_shards", most_shards);
  if (lane.window_samples == 0) {
    count_at(entry, "passed", samples);
    return;
  }
  count_at(entry, "end_shard", most_shards);
  count_at(entry, "end_sample", kMostSamples);
  if (!lane.window_start.is_before(lane.window_end)) {
    throw DataError("{}: expected a place behind \"shard\" {}, \"sample\" {}, got {}, {}",
                    entry.at("end_shard").where(),
                    lane.window_start.shard,
                    lane.window_start.sample,
                    lane.window_end.shard,
                    lane.window_end.sample);
  }
  count_at(entry, "window_samples", kMostSamples);
  count_at(entry, "passed", lane.window_samples, /*least=*/1);
}

/// A position that some epoch could have; which shards it belongs to is not checked.
/// @param samples of the epoch that have been read
LoaderPosition sound_position(const Cursor& saved, int64_t samples, bool resample) {
  const Cursor lanes = saved.at("lanes");
  if (lanes.value().is_dict()) {
    throw DataError("{}: expected a list, one entry a lane, got a dict", lanes.where());
  }
  const int64_t count = static_cast<int64_t>(lanes.size());
  if (count > kMostLanes) {
    throw DataError("{}: expected {} lanes or less, got {}", lanes.where(), kMostLanes, count);
  }
  if (count == 0 && samples > 0) {
    throw DataError("{}: expected a lane at least, since samples are passed, got none",
                    lanes.where());
  }
  const LoaderPosition position = loader_position_of(saved);
  count_at(saved, "next_lane", std::max<int64_t>(count - 1, 0));
  for (size_t i = 0; i < position.lanes.size(); ++i) {
    check_lane(lanes.at(i), position.lanes[i], samples, resample);
  }
  return position;
}

/// As shard_names_hash() writes it.
std::string shard_names_at(const Cursor& saved) {
  const Cursor entry = saved.at("shard_names");
  const std::string& hash = entry.as_string();
  if (hash.size() != 16 || hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw DataError("{}: expected 16 hexadecimal digits, got \"{}\"", entry.where(), hash);
  }
  return hash;
}

/// @throws DataError for a JSON file that is not a position, saying what it seems to be
void check_is_position(const Cursor& saved, const std::string& path_of_file) {
  if (saved.has("position")) return;
  const bool is_config = saved.has("decoder") || saved.has("prior") || saved.has("vae");
  throw DataError(
      "{}: no position of `shards order --save`, or checkpoint of a run, which --from takes: {}",
      path_of_file,
      is_config ? "it is a training file, which --config takes"
                : fmt::format("expected an entry 'position', got {}", saved.value().type_name()));
}

OrderPosition position_of_json(const std::string& path, const TrainDecoderConfig& config) {
  Value root;
  try {
    root = value_of_json(read_file(path));
  } catch (const DataError& error) {
    throw DataError("{}: no position of `shards order --save`: {}", path, error.what());
  }
  const Cursor saved(root, path);
  check_is_position(saved, path);
  if (const std::string split = saved.at("split").as_string(); split != kSplit) {
    throw ConfigError("{}: expected \"{}\", got \"{}\"", saved.at("split").where(), kSplit, split);
  }
  check_same_order(saved.at("config"), config, /*required=*/true);
  const int64_t samples = count_at(saved, "samples", kMostSamples);
  return {.epoch = count_at(saved, "epoch", kMostEpochs),
          .samples = samples,
          .loader = sound_position(saved.at("position"), samples, config.data.resample_train),
          .shard_names = shard_names_at(saved)};
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
  position.epoch = count_at(saved, "epoch", kMostEpochs);
  if (saved.has("next_task") && saved.at("next_task").as_string() != "train") {
    ++position.epoch;
    return position;
  }
  if (saved.has("sample")) position.samples = count_at(saved, "sample", kMostSamples);
  if (const auto own = saved.find(kOwnState)) {
    position.loader =
        sound_position(own->at("loader_position"), position.samples, config.data.resample_train);
  } else if (position.samples > 0) {  // the reference's checkpoints count samples only
    position.loader = LoaderPosition::after_samples(position.samples);
  }
  return position;
}

}  // namespace

OrderPosition read_order_position(const std::string& path, const TrainDecoderConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    throw ConfigError(
        "{}: {} (--from, relative to {})",
        path,
        std::filesystem::exists(path, ignored) ? "not a regular file" : "no such file",
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
    for (const char c : url_file_name(urls[i]) + '\n') {
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace dalle2
