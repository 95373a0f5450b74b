// SPDX-License-Identifier: MIT
// The writer and the reader of a train state. A kind of run lists once, in list_state(), what its
// checkpoints hold and under which keys; writing and reading both go through that list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/lora/lora_file.h"
#include "checkpoint/state_dict.h"
#include "config/reading/reflect.h"
#include "trainer/averages/weight_average.h"
#include "trainer/trained_part.h"

namespace dalle2 {

/// What a caller stores alongside a state: the config, where the run stands.
using Extras = std::vector<std::pair<std::string, Value>>;

/// A trainer's state, in the hands of a writer or a reader.
struct TrainerContents {
  ModelPlan plan;
  TrainedParts parts = {};
  std::vector<int64_t> steps = {};       ///< updates of each part, untrained ones too
  std::optional<LoraInfo> lora = {};     ///< none: the networks themselves are trained
  std::optional<EmaKind> averages = {};  ///< none without averages
  /// Weights of untrained parts, under their names in the model: they are written with its own.
  StateDict carried = {};

  /// Whether a tensor of the model is of a part that is trained, or of one that is not.
  bool has(const std::string& name, bool trained) const;
  /// The model's tensors and those that are carried, in the order of the parts.
  StateDict with_carried(StateDict of_model) const;
};

/// The CLIP of a run comes from its own file: in `weights` of another file its tensors give way to
/// those that the model holds, or to none.
void keep_own_clip(StateDict& weights, const torch::nn::Module& model);

/// The vocabulary of list_state(). Each call is an entry. Writing: entries are written in the order of the
/// calls; take() follows. Reading: take_rest() follows.
class TrainState {
 public:
  /// Writes.
  TrainState(TrainerContents& contents, const Extras& extras)
      : contents_(contents), extras_(extras) {}
  /// Reads. @param only_model weights and step counts alone; averages start over as copies
  /// @param strict missing or unexpected keys of the model are an error; else a warning
  TrainState(TrainerContents& contents, const Cursor& root, bool only_model, bool strict)
      : contents_(contents), root_(root), only_model_(only_model), strict_(strict) {}

  /// The state dict of the whole model, live weights.
  void model(const std::string& key);
  /// Layout version; a different one is mentioned in the log.
  void version(const std::string& key);
  /// [parts] int64: updates of each part.
  void steps(const std::string& key);
  /// Rank, alpha and targets; no entry without adapters.
  void lora(const std::string& key);
  /// What the caller stores; reading it is the caller's too.
  void extras() {
    for (const auto& [key, value] : extras_) out_.set(key, value);
  }
  /// As torch.optim writes it; None for an untrained part.
  void optimizer(const std::string& key, size_t part);
  /// A note for people and for the reference: rates follow from the step count and the config.
  void schedule(const std::string& key, size_t part);
  /// Anything else for people; never read.
  void note(const std::string& key, Value value) {
    if (!root_) out_.set(key, std::move(value));
  }
  void averages(const AverageLayout& layout);
  /// One entry a part, None for one without; no entry where no part has any.
  void post_hoc_averages(const std::string& key);
  /// Loss scale of fp16; no entry without.
  void scaler(const std::string& key, size_t part);
  /// [parts, 2] int64, for one part of a kind that has only one [2]: skipped updates in all and in
  /// a row; no entry where none was skipped. Both forms are read.
  void skipped(const std::string& key, bool flat);

  /// What was written. Tensors are the live ones.
  Dict take() { return std::move(out_); }
  /// Reads what has to come after the model, whose error names the tensors that differ.
  void take_rest();

 private:
  void write_averages(const AverageLayout& layout);
  void read_optimizer(const std::string& key, TrainedPart& part);

  TrainerContents& contents_;
  Extras extras_ = {};
  Dict out_ = {};
  std::optional<Cursor> root_ = {};  ///< of what is read; none: this writes
  bool only_model_ = false, strict_ = true;
  std::vector<std::pair<std::string, size_t>> optimizers_ = {};  ///< key and part, for take_rest()
};

}  // namespace dalle2
