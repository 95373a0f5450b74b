// SPDX-License-Identifier: MIT
// Logs to Weights & Biases: to the service while training, or into a folder that `wandb sync` uploads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/shared/tracker_config.h"
#include "net/wandb_api.h"
#include "tracker/log/logger.h"
#include "tracker/wandb/console_lines.h"
#include "tracker/wandb/system_info.h"
#include "tracker/wandb/wandb_mark.h"
#include "tracker/wandb/wandb_sink.h"

namespace dalle2 {

class WandbStream;
struct WandbPending;

/// To be put behind a QueuedLogger. What the environment says is in net/wandb_access.h. A service that
/// is away at the start or later turns what is left of the run into a folder; one that refuses the
/// login at the start ends the run.
class WandbLogger : public Logger {
 public:
  explicit WandbLogger(const WandbLogConfig& config);
  ~WandbLogger() override;

  std::string type_name() const override { return "WandbLogger"; }
  /// @throws ConfigError, HttpStatusError the key is refused
  void check() override;
  /// @throws as check(); NetworkError the service does not let the run be made
  void init(const RunFacts& facts) override;
  void log(const LogRecord& record, const LogMoment& moment) override;
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment& moment) override;
  void log_error(const std::string& message, const LogMoment& moment) override;
  void log_file(const std::string& name, const std::string& content) override;
  void tick() override;
  void set_deadline(Deadline deadline) override { deadline_ = deadline; }
  void finish(const RunEnd& end) override;

  bool prints_records() const override { return config_.verbose; }
  /// entity, project and run_id, as the reference has them, and first_step. Before init() the id only
  /// if it is known already.
  std::map<std::string, std::string> resume_data() const override;
  bool set_attribute(const std::string& name, const std::string& value) override;

 private:
  std::string wanted_id() const;
  WandbRunState state_of_run(const WandbApi& api, const WandbRunPath& path, bool must_exist) const;
  void look_at_run(const WandbApi& api);
  WandbRun new_run(const RunFacts& facts);
  HttpCallOptions options(bool at_start) const;
  void go_online(bool must_exist, int64_t records);
  void go_offline(const std::string& reason);
  void take_along(const WandbPending& pending, WandbSink& sink) const;
  [[noreturn]] void die(const Error& error);
  void set_first_step();
  void keep_steps_rising(const WandbProgress& marked, int64_t records);
  void skip_what_the_service_has(const WandbRunState& state, int64_t records);
  void catch_up();
  void add_missing(const RunFacts& facts);
  void add_logged(const Json& record, const LogMoment& moment, const std::string& data_path);
  void add_row(WandbItems row, const LogMoment& moment);
  void add_pictures(const std::vector<StoredImage>& images,
                    const std::string& section,
                    const LogMoment& moment);
  void write_mark();
  void add_console();
  bool is_open();
  template <class Work>
  void do_or_go_offline(Work&& work);

  const WandbLogConfig config_;
  std::optional<WandbAccess> access_;
  std::optional<WandbApi> api_;
  std::string unreachable_;  // why the service is away; empty: it is not, as far as is known
  std::string resumed_id_;   // of auto_resume.json
  std::string new_id_;       // of a run that has none
  bool goes_on_ = false;     // with the run of resumed_id_
  std::string entity_, project_;
  WandbRun run_;
  std::unique_ptr<WandbSink> sink_;  // null: disabled, or before init()
  std::string dead_;                 // why nothing can be logged any more
  WandbStream* stream_ = nullptr;    // of sink_, if it is the service
  std::set<std::string> metrics_;    // known to sink_
  WandbSummary summary_;
  int64_t step_shift_ = 0;  // from the numbers of records to the service's steps, which rise always
  std::optional<WandbMark> mark_;        // of data_path
  int64_t next_record_ = 0;              // after the last that sink_ got
  int64_t lost_pictures_ = 0;            // of records that are added later
  int64_t next_step_ = 0;                // after all that were ever given out, as far as is known
  std::optional<RunFacts> missing_;      // of records before this start that sink_ has still to get
  double runtime_before_ = 0;            // of earlier starts, seconds
  std::optional<ConsoleLines> console_;  // what was printed and is not in sink_
  SystemStats stats_;
  std::chrono::steady_clock::time_point stats_at_;
  std::atomic<Deadline> deadline_ = Deadline::max();
};

}  // namespace dalle2
