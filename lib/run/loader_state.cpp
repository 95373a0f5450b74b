// SPDX-License-Identifier: MIT
#include "run/loader_state.h"

#include "base/error.h"

namespace dalle2 {
namespace {

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
  return out;
}

LoaderPosition loader_position_of(const Cursor& saved) {
  LoaderPosition position;
  position.next_lane = saved.at("next_lane").as_int();
  const Cursor lanes = saved.at("lanes");
  for (size_t i = 0; i < lanes.size(); ++i) {
    visit_lane(position.lanes.emplace_back(), [&](const char* key, auto& value) {
      const int64_t number = lanes.at(i).at(key).as_int();
      if (number < 0) {
        throw DataError("{}: expected 0 or more, got {}", lanes.at(i).at(key).where(), number);
      }
      value = static_cast<std::decay_t<decltype(value)>>(number);
    });
  }
  return position;
}

}  // namespace dalle2
