// SPDX-License-Identifier: MIT
// Where a run stands. What all kinds have is written and read in one place. A kind lists what it adds
// once: checkpoints are written and read by that list, and the names of save targets (`{epoch}`) come
// from it. Losses that stay on the device until somebody wants a number of many: reading one synchronises.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/python_format.h"
#include "checkpoint/state_dict.h"
#include "data/loader/loader_position.h"
#include "dist/process_group.h"
#include "tracker/run_folder/run_record.h"
#include "trainer/state/train_state.h"

namespace dalle2 {

/// Our own entry of a checkpoint, which the reference skips.
inline constexpr const char* kOwnState = "dalle2_train";

/// An entry of a checkpoint, and where its value is; none and an undefined tensor are absent.
struct PositionField {
  const char* key;
  std::variant<int64_t*,
               double*,
               std::string*,
               std::vector<double>*,
               std::optional<double>*,
               at::Tensor*>
      value;
  /// Below kOwnState; else at the root, under the reference's name, and a placeholder of save targets.
  bool is_own = false;
  std::vector<int64_t> shape = {};  ///< of a tensor, -1 for any extent
};

inline constexpr const char* kTrainTask = "train";

struct RunPosition {
  int64_t epoch = 0;
  int64_t samples_seen = 0;  ///< of the whole run
  /// Or "val", and over shards "eval" and "sample"; the save at the end of an epoch says "sample".
  std::string next_task = kTrainTask;
  LoaderPosition loader;  ///< what of the epoch was consumed
  int64_t iteration = 0;  ///< updates of this epoch
  /// 1: what follows the last step (validation, best, model file, grids) is not done to its end, and a
  /// resume does it again. Meanwhile the best value is that of before.
  /// Over shards, next_task says what is left, and this that the save of the epoch is of the best.
  int64_t actions_due = 0;

  virtual ~RunPosition() = default;

  /// The one list of the entries at the root, and of what a kind adds to our own entry.
  virtual std::vector<PositionField> fields() = 0;
  /// Sets everything as at the start of the run.
  virtual void reset() = 0;
  /// Fills in what a checkpoint of the reference, which has no entry of ours, does not say.
  virtual void guess_own_fields() {}
  /// Goes back to the beginning of the epoch.
  virtual void restart_epoch();
  /// The same, where the data are others than before: what was known of them is forgotten.
  virtual void restart_with_other_data() { restart_epoch(); }
  /// The losses so far are of a model or of data with another meaning: none is the best any more.
  virtual void forget_losses() {}
  /// For people, e.g. "epoch 3, having seen 1200 samples, ...".
  virtual std::string description() const = 0;
  /// Where a resumed run begins, e.g. "epoch 3 at sample 40"; empty if description() says it.
  virtual std::string resumes_with() const { return ""; }
  /// Epochs whose training has been completed.
  virtual int64_t epochs_trained() const { return next_task == kTrainTask ? epoch : epoch + 1; }
  /// Takes what only other ranks know of the position, such as where their lanes stand. All ranks call it before a save.
  virtual void gather(ProcessGroup& group);
};

/// The entries of the root in the order of the list, and in `own` those below kOwnState.
Extras position_entries(RunPosition& position, Dict& own);
/// Resets the position, then reads the fields that are there. @throws DataError for a field of
/// another type
void read_position(RunPosition& position, const Cursor& root);
/// The placeholders of save targets with the position's values.
FormatFields position_placeholders(RunPosition& position);

/// What a checkpoint, a model or a file of adapters says of its run, read without its tensors. None if it
/// cannot be read.
std::optional<SavedFacts> read_saved_facts(const std::string& path);

/// @throws DataError for an entry of another type
SavedFacts facts_of(const Cursor& root);

struct LossAverage {
  double mean = 0;       ///< of the finite ones; NaN if there is none
  int64_t left_out = 0;  ///< losses that are not finite
};

/// A sum of losses on their device.
class LossSum {
 public:
  /// @param loss [] @param times how often it counts
  void add(const at::Tensor& loss, double times = 1) {
    const at::Tensor more = loss.detach().to(at::kDouble) * times;
    sum_ = sum_.defined() ? sum_ + more : more;
  }
  /// 0 without losses. Waits for the device.
  double value() const { return sum_.defined() ? sum_.item<double>() : 0.0; }

 private:
  at::Tensor sum_;  // [] float64
};

/// The last losses of each part of the model. A checkpoint has them, so that a resumed run logs what
/// it would have logged.
class LossWindow {
 public:
  /// @param length losses of a part that are kept: the updates between two records of the log
  LossWindow(int64_t parts, int64_t length, const at::Device& device)
      : losses_(static_cast<size_t>(parts)),
        length_(static_cast<size_t>(length)),
        device_(device) {}

  /// @param loss [] float32 of part `part` (from 1)
  void push(int64_t part, const at::Tensor& loss) {
    std::deque<at::Tensor>& recent = losses_.at(static_cast<size_t>(part - 1));
    recent.push_back(loss);
    if (recent.size() > length_) recent.pop_front();
  }
  /// Reads the losses from the device.
  LossAverage average(int64_t part) const {
    const at::Tensor losses = stacked(losses_.at(static_cast<size_t>(part - 1)));
    const at::Tensor finite = losses.masked_select(losses.isfinite());
    const double mean = finite.numel() > 0 ? finite.mean().item<double>() : std::nan("");
    return {.mean = mean, .left_out = losses.numel() - finite.numel()};
  }
  void clear() {
    for (std::deque<at::Tensor>& losses : losses_) losses.clear();
  }

  /// A list of tensors [n], one a part, oldest loss first.
  Value state() const {
    List list;
    for (const std::deque<at::Tensor>& losses : losses_)
      list.items.emplace_back(stacked(losses).cpu());
    return list;
  }
  /// @throws DataError
  void load(const Cursor& saved) {
    clear();
    for (size_t part = 0; part < saved.size() && part < losses_.size(); ++part) {
      const at::Tensor losses = saved.at(part).as_tensor().to(device_, at::kFloat);
      for (const at::Tensor& loss : losses.flatten().unbind())
        push(static_cast<int64_t>(part) + 1, loss.clone());
    }
  }

 private:
  static at::Tensor stacked(const std::deque<at::Tensor>& losses) {
    if (losses.empty()) return at::empty({0}, at::kFloat);
    return at::stack(std::vector<at::Tensor>(losses.begin(), losses.end()));
  }

  std::vector<std::deque<at::Tensor>> losses_;
  size_t length_;
  at::Device device_;
};

}  // namespace dalle2
