// SPDX-License-Identifier: MIT
// The writer and the reader of a train state. A kind of run lists once, in list_state(), what its
// checkpoints hold and under which keys; writing and reading both go through that list.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/this_process.h"
#include "checkpoint/lora/lora_file.h"
#include "checkpoint/state_dict.h"
#include "config/reading/types.h"
#include "trainer/averages/weight_average.h"
#include "trainer/trained_part.h"

namespace dalle2 {

/// What a caller stores alongside a state: the config, where the run stands.
using Extras = std::vector<std::pair<std::string, Value>>;

/// A trainer's state, in the hands of a writer or a reader.
struct TrainerContents {
  std::shared_ptr<torch::nn::Module> model;
  std::string model_name;  ///< in messages, e.g. "decoder"
  std::string part_noun;   ///< of one part in messages, e.g. "unet"
  TrainedParts parts;
  std::vector<std::string> prefixes;  ///< of the parts' networks in the model, untrained ones too
  std::vector<int64_t> steps;         ///< updates of each part, untrained ones too
  std::optional<LoraInfo> lora;       ///< none: the networks themselves are trained
  std::optional<EmaKind> averages;    ///< none without averages
  /// Weights of untrained parts, under their names in the model: they are written with its own.
  StateDict carried = {};
  std::string version = kCheckpointLayoutVersion;  ///< of the layout

  /// Whether a tensor of the model is of a part that is not trained.
  bool is_untrained(const std::string& name) const;
  /// The model's tensors and those that are carried, in the order of the parts.
  StateDict with_carried(StateDict of_model) const;
};

/// The vocabulary of list_state(). Each call is an entry; entries are written in the order of the
/// calls and read in whatever order suits them.
class TrainState {
 public:
  virtual ~TrainState() = default;
  /// The state dict of the whole model, live weights.
  virtual void model(const std::string& key) = 0;
  /// Layout version; a different one is mentioned in the log.
  virtual void version(const std::string& key) = 0;
  /// [parts] int64: updates of each part.
  virtual void steps(const std::string& key) = 0;
  /// Rank, alpha and targets; no entry without adapters.
  virtual void lora(const std::string& key) = 0;
  /// What the caller stores; reading it is the caller's too.
  virtual void extras() = 0;
  /// As torch.optim writes it; None for an untrained part.
  virtual void optimizer(const std::string& key, size_t part) = 0;
  /// A note for people and for the reference: rates follow from the step count and the config.
  virtual void schedule(const std::string& key, size_t part) = 0;
  /// Anything else for people; never read.
  virtual void note(const std::string& key, Value value) = 0;
  virtual void averages(const AverageLayout& layout) = 0;
  /// One entry a part, None for one without; no entry where no part has any.
  virtual void post_hoc_averages(const std::string& key) = 0;
  /// Loss scale of fp16; no entry without.
  virtual void scaler(const std::string& key, size_t part) = 0;
  /// [parts, 2] int64, for one part of a kind that has only one [2]: skipped updates in all and in
  /// a row; no entry where none was skipped.
  virtual void skipped(const std::string& key, bool flat) = 0;
};

class TrainStateWriter : public TrainState {
 public:
  TrainStateWriter(const TrainerContents& contents, const Extras& extras)
      : from_(contents), extras_(extras) {}

  void model(const std::string& key) override;
  void version(const std::string& key) override;
  void steps(const std::string& key) override;
  void lora(const std::string& key) override;
  void extras() override;
  void optimizer(const std::string& key, size_t part) override;
  void schedule(const std::string& key, size_t part) override;
  void note(const std::string& key, Value value) override;
  void averages(const AverageLayout& layout) override;
  void post_hoc_averages(const std::string& key) override;
  void scaler(const std::string& key, size_t part) override;
  void skipped(const std::string& key, bool flat) override;

  /// The entries so far. Tensors are the live ones.
  Dict take() { return std::move(out_); }

 private:
  const TrainerContents& from_;
  const Extras& extras_;
  Dict out_;
};

/// The CLIP of a run comes from its own file: in `weights` of another file its tensors give way to
/// those that the model holds, or to none.
void keep_own_clip(StateDict& weights, const torch::nn::Module& model);

/// Usage: TrainStateReader reader(contents, root, only_model, strict); kind.list_state(reader);
/// reader.finish();
class TrainStateReader : public TrainState {
 public:
  /// @param only_model weights and step counts alone; averages start over as copies
  /// @param strict missing or unexpected keys of the model are an error; else a warning
  TrainStateReader(TrainerContents& contents, const Cursor& root, bool only_model, bool strict)
      : to_(contents), root_(root), only_model_(only_model), strict_(strict) {}

  void model(const std::string& key) override;
  void version(const std::string& key) override;
  void steps(const std::string& key) override;
  void lora(const std::string& key) override;
  void extras() override {}
  void optimizer(const std::string& key, size_t part) override;
  void schedule(const std::string& /*key*/, size_t /*part*/) override {}
  void note(const std::string& /*key*/, Value /*value*/) override {}
  void averages(const AverageLayout& layout) override;
  void post_hoc_averages(const std::string& key) override;
  void scaler(const std::string& key, size_t part) override;
  void skipped(const std::string& key, bool flat) override;

  /// Reads what has to come after the model, whose error names the tensors that differ.
  void finish();

 private:
  void read_optimizer(const std::string& key, TrainedPart& part);

  TrainerContents& to_;
  Cursor root_;
  bool only_model_, strict_;
  std::vector<std::pair<std::string, size_t>> optimizers_;  ///< key and part, for finish()
};

}  // namespace dalle2
