// SPDX-License-Identifier: MIT
// The copies of a run's files that its savers make (/tracker/save), on this machine and at services.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/python_format.h"
#include "config/shared/tracker_config.h"
#include "tracker/log/record.h"
#include "tracker/places/saver.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_folder.h"

namespace dalle2 {

class Copies {
 public:
  /// @param leaves_out a file of this machine is missing
  using LogError = std::function<void(const std::string& message, bool leaves_out)>;

  /// @param folder has to outlive this object @throws ConfigError no saver; as Saver::check_targets()
  Copies(const std::vector<SaveConfig>& savers, const FormatFields& example, RunFolder& folder);

  /// Whether the targets can be written and the services take the login. They share one deadline.
  /// @throws as Saver::check_access()
  void check_access(const FormatFields& example, Deadline deadline) const;
  /// @throws ConfigError naming the files at fixed targets on this machine that are not this run's,
  /// with what moves them away
  void check_targets_are_free() const;
  /// Files at fixed targets that this run saved and that can be read.
  std::vector<std::string> intact() const;
  /// @param log_error takes what fails from now on
  void open(const std::optional<std::string>& wandb_run, LogError log_error);

  /// Lets each saver copy what it wants. One that fails is logged, and the others still save.
  void save(bool is_best, bool is_latest, const FormatFields& placeholders);
  /// The config in data_path, for the savers that take it.
  void save_config(const std::string& name, const std::string& content);
  /// A page on what was trained, once, where a service wants one. @param config JSON
  void send_cards(const std::string& config, const std::vector<StoredImage>& pictures);

  /// Uploads that have failed since, for the log.
  void log_upload_errors();
  // ---- the end of the uploads, as in Uploads
  void begin_end() {
    if (uploads_) uploads_->begin_end();
  }
  bool is_done() const { return !uploads_ || uploads_->is_done(); }
  bool last_answer_was_fault() const { return uploads_ && uploads_->last_answer_was_fault(); }
  /// Says too what is left, which waits in the outbox. Nothing can be saved afterwards.
  void end();
  bool is_remote() const;
  /// The single errors may be far up in the log.
  void tell_failures() const;

 private:
  struct Failures {
    const Saver* saver;
    std::string target_template;
    int64_t count = 0;
    bool last_failed = false;
  };

  void save_with(Saver& saver,
                 const std::string& target_template,
                 const FormatFields& placeholders);
  std::string outbox() const { return folder_.in(kOutboxFolder); }

  RunFolder& folder_;
  std::vector<std::unique_ptr<Saver>> savers_;
  std::unique_ptr<Uploads> uploads_;  // null: nothing is sent
  LogError log_error_;
  std::vector<Failures> failures_;  // of this start, in the order of their first
  bool sent_cards_ = false;
};

}  // namespace dalle2
