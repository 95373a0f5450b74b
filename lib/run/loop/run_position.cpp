// SPDX-License-Identifier: MIT
#include "run/loop/run_position.h"

#include <algorithm>
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/convert.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/pickle/value_json.h"
#include "config/reading/reflect.h"
#include "io/files/folder_names.h"

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
  visitor("bytes", position.window_start.bytes);
  visitor("end_shard", position.window_end.shard);
  visitor("end_sample", position.window_end.sample);
  visitor("end_offset", position.window_end.offset);
  visitor("end_bytes", position.window_end.bytes);
  visitor("window_samples", position.window_samples);
  visitor("passed", position.passed);
  visitor("last_draw", position.last_draw);
  visitor("shuffle_buffer", position.shuffle_buffer);
  visitor("bad_shards", position.bad_shards);
}

void read_count(const Cursor& entry, auto& value) {
  const int64_t number = entry.as_int();
  if (number < 0) throw DataError("{}: expected 0 or more, got {}", entry.where(), number);
  value = static_cast<std::decay_t<decltype(value)>>(number);
}

/// The list of a position, and what all have.
std::vector<PositionField> fields_of(RunPosition& position) {
  std::vector<PositionField> fields = position.fields();
  fields.push_back({"iteration", &position.iteration, true});
  fields.push_back({"actions_due", &position.actions_due, true});
  return fields;
}

/// None where it is absent.
Value entry_of(const auto& value) {
  return value;
}
Value entry_of(const std::optional<double>& value) {
  return value ? Value(*value) : Value();
}
Value entry_of(const at::Tensor& value) {
  return value.defined() ? Value(value) : Value();
}
/// A list of 0-d tensors, as the reference stores it.
Value entry_of(const std::vector<double>& values) {
  List list;
  for (const double value : values) list.items.emplace_back(at::scalar_tensor(value, at::kFloat));
  return list;
}

/// @throws DataError
void check_shape(const Cursor& entry, const PositionField& field) {
  const at::IntArrayRef got = std::get<at::Tensor*>(field.value)->sizes();
  const auto fits = [](int64_t wanted, int64_t extent) { return wanted < 0 || wanted == extent; };
  if (std::ranges::equal(field.shape, got, fits)) return;
  throw DataError("{}: expected a tensor {} (-1: of any extent), got {}",
                  entry.where(),
                  shape_text(field.shape),
                  shape_text(got));
}

void read_entry(const Cursor& entry, auto& value) {
  using Field = std::decay_t<decltype(value)>;
  if constexpr (std::is_same_v<Field, int64_t>) {
    value = entry.as_int();
  } else if constexpr (std::is_same_v<Field, std::string>) {
    value = entry.as_string();
  } else if constexpr (std::is_same_v<Field, at::Tensor>) {
    value = entry.as_tensor();
  } else {
    value = entry.as_double();
  }
}
void read_entry(const Cursor& entry, std::vector<double>& values) {
  values.clear();
  for (size_t i = 0; i < entry.size(); ++i) values.push_back(entry.at(i).as_double());
}

/// {row: int, block_rows: int, next_lane: int, lanes: [{...}], shard_names: str}, with the numbers of
/// each LanePosition.
Value value_of(const LoaderPosition& position) {
  List lanes;
  for (const LanePosition& lane : position.lanes) {
    Dict out;
    visit_lane(lane,
               [&](const char* key, auto value) { out.set(key, static_cast<int64_t>(value)); });
    lanes.items.emplace_back(std::move(out));
  }
  Dict out;
  out.set("row", position.row);
  out.set("block_rows", position.block_rows);
  out.set("next_lane", position.next_lane);
  out.set("lanes", std::move(lanes));
  out.set("shard_names", position.shard_names);
  return out;
}

LoaderPosition loader_position_of(const Cursor& saved) {
  LoaderPosition position;
  const Cursor lanes = saved.at("lanes");
  if (lanes.size() > kMostLanes) {
    throw DataError(
        "{}: expected {} lanes or less, got {}", lanes.where(), kMostLanes, lanes.size());
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    const Cursor lane = lanes.at(i);
    visit_lane(position.lanes.emplace_back(),
               [&](const char* key, auto& value) { read_count(lane.at(key), value); });
  }
  read_count(saved.at("row"), position.row);
  read_count(saved.at("block_rows"), position.block_rows);
  const Cursor next_lane = saved.at("next_lane");
  read_count(next_lane, position.next_lane);
  if (position.next_lane > 0 && position.next_lane >= static_cast<int64_t>(lanes.size())) {
    throw DataError(
        "{}: expected a lane of {}, got {}", next_lane.where(), lanes.size(), position.next_lane);
  }
  position.shard_names = saved.at("shard_names").as_string();
  return position;
}

}  // namespace

Extras position_entries(RunPosition& position, Dict& own) {
  Extras root;
  for (const PositionField& field : fields_of(position)) {
    Value entry = std::visit([](const auto* value) { return entry_of(*value); }, field.value);
    if (entry.is_none()) continue;
    if (field.is_own) {
      own.set(field.key, std::move(entry));
    } else {
      root.emplace_back(field.key, std::move(entry));
    }
  }
  own.set("loader_position", value_of(position.loader));
  return root;
}

// A model file has our entry without the fields: they keep the values of the start.
void read_position(RunPosition& position, const Cursor& root) {
  position.reset();
  const std::optional<Cursor> own = root.find(kOwnState);
  for (const PositionField& field : fields_of(position)) {
    const std::optional<Cursor> entry = !field.is_own ? root.find(field.key)
                                        : own         ? own->find(field.key)
                                                      : std::nullopt;
    if (entry) std::visit([&](auto* value) { read_entry(*entry, *value); }, field.value);
    if (entry && !field.shape.empty()) check_shape(*entry, field);
  }
  if (!own) {
    position.guess_own_fields();
  } else if (const auto loader = own->find("loader_position")) {
    position.loader = loader_position_of(*loader);
  }
}

void RunPosition::restart_epoch() {
  iteration = 0;
  loader = {};
}

void RunPosition::gather(ProcessGroup& group) {
  if (group.is_alone() || loader.lanes.empty()) return;
  std::vector<LoaderPosition> of_ranks;
  for (const std::string& text :
       group.gather_texts(json_of_value(value_of(loader)), "places of the lanes")) {
    const Value saved = value_of_json(text);
    of_ranks.push_back(loader_position_of(Cursor(saved)));
  }
  loader = join_positions(of_ranks);
}

FormatFields position_placeholders(RunPosition& position) {
  FormatFields placeholders;
  for (const PositionField& field : position.fields()) {
    if (field.is_own) continue;
    std::visit(
        [&](const auto* value) {
          if constexpr (std::is_constructible_v<FormatValue, decltype(*value)>)
            placeholders.emplace_back(field.key, *value);
        },
        field.value);
  }
  return placeholders;
}

std::optional<SavedFacts> read_saved_facts(const std::string& path) {
  try {
    if (!path_exists(path)) return std::nullopt;
    if (looks_like_safetensors(path)) {
      const SafetensorsFile file = read_safetensors(path);
      const auto id = file.metadata.find(kRunIdOfLora);
      return SavedFacts{.run_id = id == file.metadata.end() ? "" : id->second};
    }
    const Value root = read_checkpoint_outline(path);
    return facts_of(Cursor(root, path));
  } catch (const DataError&) {  // the start says why, should it want the file
    return std::nullopt;
  }
}

SavedFacts facts_of(const Cursor& root) {
  SavedFacts facts;
  if (!root.value().is_dict()) return facts;
  if (const auto samples = root.find("samples_seen")) facts.samples_seen = samples->as_int();
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!own) return facts;
  if (const auto id = own->find("run_id")) facts.run_id = id->as_string();
  if (const auto steps = own->find("first_steps")) facts.steps = steps->as_int();
  if (const auto amid = own->find("amid_skips")) facts.amid_skips = amid->as_bool();
  if (const auto lines = own->find("log_lines")) facts.log_lines = lines->as_int();
  return facts;
}

}  // namespace dalle2
