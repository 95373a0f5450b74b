// SPDX-License-Identifier: MIT
// The copies of a run's files that its savers make (/tracker/save): files of this machine, and files at
// services, which get them in the background.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_folder.h"

namespace dalle2 {

/// README.md of a repository on the Hugging Face hub: what was trained, how to draw from it, by which config.
/// @param file the checkpoint's name there @param config JSON, with its defaults, without secrets
std::string model_card(const HuggingfaceSaveConfig& saver,
                       const std::string& file,
                       const std::string& config);

class Copies {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  using LogError = std::function<void(const std::string& message)>;

  /// @param example a value for each placeholder of the targets
  /// @param folder has to outlive this object
  /// @throws ConfigError a target that cannot be one
  Copies(const std::vector<SaveConfig>& savers, FormatFields example, RunFolder& folder);

  /// Whether the targets can be written and the services take the login. A service that does not answer until
  /// the deadline is away: a warning. @throws ConfigError naming the place, NetworkError
  void check_access(Deadline deadline) const;
  /// @throws ConfigError naming the files at fixed targets on this machine that are not this run's
  void check_targets_are_free() const;
  /// Files at fixed targets that this run saved and that can be read.
  std::vector<std::string> intact() const;
  /// The run may write now, and its loggers have begun.
  /// @param wandb_run the run that the W&B logger logs to; empty: there is none
  /// @param log_error takes what fails on this machine from now on
  /// @param on_upload_error takes what could not be sent and waits, on any thread
  void open(const std::string& wandb_run,
            const std::string& config,
            LogError log_error,
            LogError on_upload_error);

  /// Lets each saver copy what it wants; the first time repositories get a page too, if they have none. A
  /// saver that fails is logged, and the others still save.
  void save(bool is_best, bool is_latest, const FormatFields& placeholders);
  /// The config in data_path, for the savers that take it.
  void save_config(const std::string& name, const std::string& content);

  // ---- the end of the uploads, as in Uploads
  void begin_end() const {
    if (uploads_) uploads_->begin_end();
  }
  bool is_done() const { return !uploads_ || uploads_->is_done(); }
  bool last_answer_was_fault() const { return uploads_ && uploads_->last_answer_was_fault(); }
  /// Nothing can be saved afterwards. @return how many files are left, which wait in the outbox
  size_t end();

 private:
  struct Saver {
    SaveConfig config;
    SaveTargets targets;
    std::shared_ptr<Destination> destination;  // null: files of this machine
  };

  void attempt(const std::string& what, const std::function<void()>& part);
  /// @param kind for people: "checkpoint", "model", "lora" or "config"
  void save_file(const Saver& saver,
                 const std::string& path,
                 const std::string& kind,
                 const std::string& target);
  void send_card(const Saver& saver);
  std::string outbox() const { return folder_.in(kOutboxFolder); }

  RunFolder& folder_;
  const FormatFields example_;
  std::vector<Saver> savers_;
  std::unique_ptr<Uploads> uploads_;  // null: before open(), and after end()
  LogError log_error_;
  std::string config_;
  bool sent_cards_ = false;
};

struct SyncReport {
  size_t sent = 0, left = 0;             ///< files
  int64_t rows_sent = 0, rows_left = 0;  ///< lines of log.jsonl
  std::vector<std::string> errors;       ///< why some are left
};

/// Sends what waits in data_path/outbox, each file once, and the lines of log.jsonl that the run's
/// Weights & Biases run has not got, with the logins of this environment.
/// @param data_path of a run @throws ConfigError it is none, or a copy of one
SyncReport sync_run(const std::string& data_path);

}  // namespace dalle2
