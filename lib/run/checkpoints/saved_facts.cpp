// SPDX-License-Identifier: MIT
#include "run/checkpoints/saved_facts.h"

#include "base/error.h"
#include "checkpoint/convert.h"
#include "run/loop/run_position.h"

namespace dalle2 {

std::optional<SavedFacts> read_saved_facts(const std::string& path) {
  try {
    const Value root = read_checkpoint_outline(path);
    return facts_of(Cursor(root, path));
  } catch (const DataError&) {  // the start says why, should it want the file
    return std::nullopt;
  }
}

void add_facts(const SavedFacts& facts, Dict& own) {
  own.set("run_id", facts.run_id);
  if (facts.amid_skips) own.set("amid_skips", true);
  if (facts.went_back_to.empty()) return;
  List samples;
  for (const int64_t each : facts.went_back_to) samples.items.emplace_back(each);
  own.set("went_back_to", std::move(samples));
}

SavedFacts facts_of(const Cursor& root) {
  SavedFacts facts;
  if (!root.value().is_dict()) return facts;
  if (const auto samples = root.find("samples_seen")) facts.samples_seen = samples->as_int();
  const std::optional<Cursor> own = root.find(kOwnState);
  if (!own) return facts;
  if (const auto id = own->find("run_id")) facts.run_id = id->as_string();
  if (const auto amid = own->find("amid_skips")) facts.amid_skips = amid->as_bool();
  if (const auto samples = own->find("went_back_to")) {
    for (size_t i = 0; i < samples->size(); ++i)
      facts.went_back_to.push_back(samples->at(i).as_int());
  }
  return facts;
}

}  // namespace dalle2
