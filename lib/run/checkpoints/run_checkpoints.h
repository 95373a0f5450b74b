// SPDX-License-Identifier: MIT
// Checkpoints of a run of any kind: what one has to agree with before a run resumes from it or takes its
// weights, which a dry run checks too; the one to resume from; what is saved, in the background if the
// config says so.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "checkpoint/pickle/pth.h"
#include "checkpoint/state_dict.h"
#include "config/resume_changes.h"
#include "config/shared/train_options.h"
#include "run/loop/run_position.h"
#include "run/loop/run_session.h"
#include "tracker/tracker.h"
#include "trainer/trainer.h"

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
/// @param has whether the run has a tensor of that name in the stages that are trained, or in the others
HeldStages held_stages(const Cursor& root,
                       const std::function<bool(const std::string& name, bool trained)>& has);
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

/// Writes files now, or from copies in host memory while training continues.
class PthSaving {
 public:
  /// Writes one of the values to a path, whole or not at all.
  using Write = std::function<void(const std::string& path)>;
  /// Makes the files, with one writer a value.
  using Job = std::function<void(const std::vector<Write>& writers)>;

  /// Waits. An error that nobody has asked for is logged.
  ~PthSaving();

  /// Waits for the previous save, so that none is left out. Then runs `job` right away, or on a
  /// thread of its own, from copies of the values that are made before this returns. Memory of the
  /// copies is reused.
  /// @throws what the previous save threw, and without a thread what the job throws
  void start(bool in_background, std::vector<Value> values, Job job);
  /// @throws what the save threw, once
  void wait() {
    if (work_.valid()) work_.get();
  }
  /// The same without waiting: an error of a save that is still running is thrown by a later call.
  void check();

 private:
  std::vector<PthSnapshot> copies_;
  std::future<void> work_;
};

class RunCheckpoints {
 public:
  /// Arguments passed by reference must outlive this object.
  RunCheckpoints(RunSession& session,
                 Trainer& trainer,
                 RunPosition& position,
                 LossWindow& losses,
                 const SharedTrainConfig& config,
                 ConfigTexts texts);

  /// Takes up the first file of the tracker's list that can be read and holds finite weights; without one
  /// the run starts from zero. One whose config does not fit ends the start. Nothing is written.
  /// @throws DataError if there are checkpoints and none is good; ConfigError if the config gives
  /// the checkpoint another meaning, or adapters find no weights to stand on; StoppedError on all
  /// ranks after a signal while it looked, with nothing changed
  void start();
  /// After start(): now the run may write. @return whether it resumes
  bool begin();
  /// Says where in the run a start from a checkpoint begins.
  void tell_resuming() const;
  /// How much data the run has. Call it before start(), which compares it with the checkpoint.
  void set_data_size(DataSize size) { data_size_ = std::move(size); }
  /// Goes back to newest_good(). @throws DataError it cannot be loaded
  void go_back();

  /// Saves where the run stands: checkpoint.pth and model.pth in the data_path, then the savers'
  /// targets. @throws NonFiniteError, and saves nothing, if weights or averages are not finite
  void save(bool is_best, bool is_latest = true);
  /// Whether the last update of any part was skipped: its weights may be at fault. Waits for the
  /// device.
  bool is_amid_skips() const;

  /// Saves the averages of /train/post_hoc_ema if this step is one of theirs.
  void save_averages_if_due();
  /// Saves them, unless they were saved at this step already or there are none.
  void save_averages();

  /// The end of a run: waits for the last save, and logs what was trained if it is done.
  /// @return `code`. @throws as wait(), and what a full disk has said to the last save
  ExitCode finish(ExitCode code);
  /// @throws what a save in the background threw, once. check() does not wait for one under way,
  /// and throws ConfigError once another start has taken the run over.
  void wait() { saving_.wait(); }
  void check();

  /// The run's own newest checkpoint that was not saved amid skipped updates; empty if there is none.
  /// Waits for a save in progress.
  std::string newest_good();

  /// Roll-backs of the whole run; checkpoints record them.
  int64_t roll_backs() const { return roll_backs_; }

 private:
  struct Found {
    std::string path;
    std::string reason = {};  ///< of a start from zero with weights of the file, for the log
  };

  LoadedState loaded_from(const std::string& path) const;
  void take_up(const StartPlan& plan);
  void load(const Value& checkpoint, const std::string& path, bool allows_changes);
  void read_own(const Cursor& root);
  void load_base(const Value& checkpoint, const std::string& path, const HeldStages& held);
  bool is_base(const Cursor& root, const HeldStages& held) const;
  void carry_untrained(const Cursor& root);
  StartPlan plan_of_main();
  void check_same_start();
  void check_same_weights();
  void check_state() const;
  void start_saving(SaveRequest request, Value checkpoint, Value model);
  void save_or_wait(const SaveRequest& request);
  /// A run that is stopping has nothing to do meanwhile, and needs no copy.
  bool saves_in_background() const { return config_.async_save && !session_.stopped(); }

  RunSession& session_;
  Trainer& trainer_;
  RunPosition& position_;
  LossWindow& losses_;
  const SharedTrainConfig& config_;
  ConfigTexts texts_;
  DataSize data_size_;
  std::optional<Found> found_;  // by start(); none: it starts from zero
  int64_t roll_backs_ = 0;
  std::optional<int64_t> log_lines_;  // of the state that was loaded
  int64_t averages_saved_at_ = 0;     // steps of the first trained part
  int full_disks_ = 0;     // saves in a row, up to the last one, that a full disk refused
  std::string full_disk_;  // what it said
  PthSaving saving_;       // the last member: it uses the others until it has finished
};

}  // namespace dalle2
