// SPDX-License-Identifier: MIT
// Checkpoints of a run of any kind: finds the one to resume from, falls back to an older one, and
// resumes. Saves the latest and the best state and the averages of /train/post_hoc_ema, in the
// background if the config says so.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/pickle/pth.h"
#include "config/shared/train_options.h"
#include "run/checkpoints/resume_checks.h"
#include "run/loop/loss_window.h"
#include "run/loop/run_position.h"
#include "run/loop/run_session.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Writes files now, or from copies in host memory while training continues.
class PthSaving {
 public:
  /// Writes one of the values to a path, whole or not at all.
  using Write = std::function<void(const std::string& path)>;
  /// Makes the files, with one writer a value.
  using Job = std::function<void(const std::vector<Write>& writers)>;

  PthSaving() = default;
  /// Waits. An error that nobody has asked for is logged.
  ~PthSaving();
  PthSaving(const PthSaving&) = delete;
  PthSaving& operator=(const PthSaving&) = delete;

  /// Waits for the previous save, so that none is left out. Then runs `job` right away, or on a
  /// thread of its own, from copies of the values that are made before this returns. Memory of the
  /// copies is reused.
  /// @throws what the previous save threw, and without a thread what the job throws
  void start(bool in_background, std::vector<Value> values, Job job);
  /// @throws what the save threw, once
  void wait();
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

  /// Resumes from the first file of the tracker's list that can be read and holds finite weights, or
  /// starts from zero; then the run may write. One whose config does not fit ends the start.
  /// @throws DataError if there are checkpoints and none is good; ConfigError if the config gives
  /// the checkpoint another meaning, or adapters find no weights to stand on; StoppedError on all
  /// ranks after a signal while it looked, with nothing changed
  /// @param prepare called when the state stands and nothing is written yet; may throw
  /// @return whether it resumes
  bool start(const std::function<void()>& prepare);
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

  /// The end of a run: end_saving(), and logs what was trained if it is done.
  /// @return `code`. @throws as wait()
  ExitCode finish(ExitCode code);
  /// @throws what a save in the background threw, once. check() does not wait for one under way,
  /// and throws ConfigError once another start has taken the run over.
  void wait() { saving_.wait(); }
  /// The same, with what a full disk has said to the last save: nothing can be saved afterwards.
  void end_saving();
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

  RunFacts facts() const;
  LoadedState loaded_from(const std::string& path) const;
  std::optional<Found> take_up(const StartPlan& plan);
  void load(const Value& checkpoint, const std::string& path, bool allows_changes);
  void read_own(const Cursor& root);
  void load_base(const Value& checkpoint, const std::string& path);
  bool is_base(const Cursor& root) const;
  HeldStages held_by(const Cursor& root) const;
  void carry_untrained(const Cursor& root);
  StartPlan plan_of_main();
  void check_same_start(const std::optional<Found>& found);
  void check_same_weights();
  void check_state() const;
  void start_saving(SaveRequest request, Value checkpoint, Value model);
  void save_or_wait(const SaveRequest& request);
  bool saves_in_background() const;

  RunSession& session_;
  Trainer& trainer_;
  RunPosition& position_;
  LossWindow& losses_;
  const SharedTrainConfig& config_;
  ConfigTexts texts_;
  DataSize data_size_;
  int64_t roll_backs_ = 0;
  std::optional<int64_t> log_lines_;  // of the state that was loaded
  int64_t averages_saved_at_ = 0;     // steps of the first trained part
  int full_disks_ = 0;     // saves in a row, up to the last one, that a full disk refused
  std::string full_disk_;  // what it said
  PthSaving saving_;       // the last member: it uses the others until it has finished
};

}  // namespace dalle2
