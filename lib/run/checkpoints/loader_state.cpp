// SPDX-License-Identifier: MIT
#include "run/checkpoints/loader_state.h"

#include "base/error.h"
#include "config/reading/count_limits.h"

namespace dalle2 {
namespace {

/// What /data/lanes allows: a file that says more is damaged.
constexpr auto kMostLanes = static_cast<size_t>(most::kRanks);

/// The one list of what a lane's position holds: for reading and writing.
template <class Position, class Visitor>
void visit_lane(Position& position, Visitor visitor) {
  visitor("shard", position.window_start.shard);
  visitor("sample", position.window_start.sample);
  visitor("offset", position.window_start.offset);
  visitor("end_shard", position.window_end.shard);
  visitor("end_sample", position.window_end.sample);
  visitor("end_offset", position.window_end.offset);
  visitor("window_samples", position.window_samples);
  visitor("passed", position.passed);
  visitor("last_draw", position.last_draw);
  visitor("shuffle_buffer", position.shuffle_buffer);
  visitor("shards", position.shards);
  visitor("bad_shards", position.bad_shards);
}

/// @throws DataError for a number that no count can be
void read_count(const Cursor& entry, auto& value) {
  const int64_t number = entry.as_int();
  if (number < 0) throw DataError("{}: expected 0 or more, got {}", entry.where(), number);
  value = static_cast<std::decay_t<decltype(value)>>(number);
}

}  // namespace

Value value_of(const LoaderPosition& position) {
  List lanes;
  for (const LanePosition& lane : position.lanes) {
    Dict out;
    visit_lane(lane,
               [&](const char* key, auto value) { out.set(key, static_cast<int64_t>(value)); });
    lanes.items.emplace_back(std::move(out));
  }
  Dict out;
  out.set("next_lane", position.next_lane);
  out.set("lanes", std::move(lanes));
  out.set("shard_names", position.shard_names);
  return out;
}

LoaderPosition loader_position_of(const Cursor& saved) {
  LoaderPosition position;
  const Cursor lanes = saved.at("lanes");
  if (lanes.value().is_dict()) {
    throw DataError("{}: expected a list with one entry per lane, got a dict", lanes.where());
  }
  if (lanes.size() > kMostLanes) {
    throw DataError(
        "{}: expected {} lanes or less, got {}", lanes.where(), kMostLanes, lanes.size());
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Cursor lane = lanes.at(i);
    visit_lane(position.lanes.emplace_back(), [&](const char* key, auto& value) {
      if (const auto entry = lane.find(key)) read_count(*entry, value);
    });
  }
  const Cursor next_lane = saved.at("next_lane");
  read_count(next_lane, position.next_lane);
  if (position.next_lane > 0 && position.next_lane >= static_cast<int64_t>(lanes.size())) {
    throw DataError(
        "{}: expected a lane of {}, got {}", next_lane.where(), lanes.size(), position.next_lane);
  }
  if (const auto names = saved.find("shard_names")) position.shard_names = names->as_string();
  return position;
}

}  // namespace dalle2
