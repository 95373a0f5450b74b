// SPDX-License-Identifier: MIT
// What a checkpoint has to agree with before a run resumes from it or takes its weights. A start and
// a dry run check the same.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/public_url.h"
#include "checkpoint/state_dict.h"
#include "config/resume_changes.h"
#include "run/loop/run_position.h"
#include "tracker/tracker.h"

namespace dalle2 {

/// The config of a run, as checkpoints and the folder of the run have it.
struct ConfigTexts {
  std::string kind;      ///< root key, e.g. "decoder"
  std::string raw_json;  ///< the file as it stands
  std::string
      full_json;  ///< with every default, without secrets, in the form that a checkpoint takes
};

/// Those of a config that was read.
template <class Loaded>
ConfigTexts config_texts(const Loaded& loaded) {
  return {.kind = decltype(loaded.config)::kKind,
          .raw_json = loaded.raw_json,
          .full_json = public_config(loaded.full_json)};
}

/// How much data a run has, over all splits.
struct DataSize {
  int64_t count = 0;           ///< 0: not known
  const char* unit = "shard";  ///< one of it
  std::string names = "";  ///< a hash of its names, where their order decides what is trained on
};

/// Compares the config of a checkpoint with that of the run, and logs what has changed.
/// @throws ConfigError for what gives the weights or the data another meaning, unless allowed
ConfigChanges compare_config(const Cursor& root,
                             const ConfigTexts& texts,
                             const DataSize& data_size,
                             bool allow_changed_config);
/// For an evaluation: warns if the config or the data now give other splits than those of the run that saved `root`, for then the
/// figures may be of samples that it was trained on.
void warn_of_other_splits(const Cursor& root, const ConfigTexts& texts, const DataSize& data_size);
/// The same for a file that only gives weights to stand on or to carry: the model alone counts.
/// @throws ConfigError
void check_same_model(const Cursor& root, const ConfigTexts& texts, bool allow_changed_config);
/// Whether a checkpoint, or a bare state dict, holds tensors of stages that a run trains, and of
/// others.
struct HeldStages {
  bool trained = false, untrained = false;
  /// It can only give what the run does not train.
  bool only_untrained() const { return untrained && !trained; }
};
/// @param is_trained, is_untrained by the name of a tensor
HeldStages held_stages(const Cursor& root,
                       const std::function<bool(const std::string&)>& is_trained,
                       const std::function<bool(const std::string&)>& is_untrained);
/// Warns where the checkpoint at `path` has been trained for more epochs than are asked for.
void warn_if_nothing_is_left(const RunPosition& position, int64_t epochs, const std::string& path);
/// A file that this user may not open is not damaged: an older state must not replace it.
/// @throws ConfigError
void check_readable(const std::vector<std::string>& checkpoints);
/// Takes the first of a plan's files that is good, with a warning for each before it.
/// @param take throws DataError for one that is not @return its path; none for a plan without files
/// @throws DataError if none is good
std::optional<std::string> take_first(const StartPlan& plan,
                                      const std::string& data_path,
                                      const std::function<void(const std::string& path)>& take);
/// For adapters that found no weights to stand on. @throws ConfigError
[[noreturn]] void throw_no_base(const std::string& model_name);

}  // namespace dalle2
