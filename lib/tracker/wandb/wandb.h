// SPDX-License-Identifier: MIT
// A run of Weights & Biases gets the lines of log.jsonl as rows: at the service, or in an offline folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/formats/wandb_file.h"
#include "tracker/log/follower.h"

namespace dalle2 {

/// The column of the history that charts have as their axis: our own step, which may go back.
inline constexpr const char* kWandbAxis = "step";

/// A line that was printed, without its end.
struct WandbConsoleLine {
  std::string text;
  bool is_error = false;
  double unix_seconds = 0;
};

/// What a run gets at once, in the order in which it comes.
struct WandbBatch {
  std::vector<std::string> columns = {};  ///< new ones
  std::vector<WandbUpload> files = {};
  std::vector<std::pair<int64_t, WandbItems>> rows = {};  ///< at the service's steps, which rise
  WandbItems stats = {};                                  ///< of the machine, or none
  double stats_unix_seconds = 0;
  std::vector<WandbConsoleLine> console = {};
  std::map<std::string, std::string> summary = {};  ///< the last value of every column
  std::optional<RunEnd> end = {};                   ///< it is the last one
  int64_t runtime_seconds = 0;                      ///< then
};

class WandbTarget {
 public:
  virtual ~WandbTarget() = default;
  /// Returns when all of it has arrived. @throws NetworkError, ResourceError
  virtual void take(const WandbBatch& batch) = 0;
};

/// The folder `offline-run-<time>-<id>` in `parent`, which `wandb sync` uploads.
/// @param[out] path of it. @throws ConfigError, ResourceError
std::unique_ptr<WandbTarget> make_wandb_folder(const std::string& parent,
                                               const WandbRun& run,
                                               std::string* path);

/// Keeps what the log prints until it is taken. Whoever prints never waits: lines beyond `most_bytes` are lost.
class ConsoleLines {
 public:
  explicit ConsoleLines(size_t most_bytes = size_t{4} << 20);
  ~ConsoleLines();

  /// The lines since the last call.
  std::vector<WandbConsoleLine> take();

 private:
  int listener_ = 0;
  std::mutex mutex_;  // of what follows
  std::vector<WandbConsoleLine> lines_;
  size_t bytes_ = 0;
};

/// A run of Weights & Biases: which it is, whether it may log there, and what of log.jsonl it gets.
class WandbLogger : public Logger {
 public:
  static constexpr double kSendSeconds = 5;

  explicit WandbLogger(const WandbLogConfig& config);
  /// Sends the rows of a run that another process has logged; it has no figures and no console of its own.
  WandbLogger(const WandbRunPath& run, const WandbAccess& access);

  /// A service that is away is a warning. @throws ConfigError, HttpStatusError the key is refused
  void check(Deadline deadline) override;
  bool begin(const RunFacts& facts) override;
  /// As the reference has them; the id only if it is known already.
  std::vector<std::pair<std::string, std::string*>> attributes() override {
    return {{"entity", &entity_}, {"project", &project_}, {"run_id", &run_id_}};
  }
  std::string wandb_run() const override;

  std::string name() const override { return "Weights & Biases"; }
  std::string key() const override;
  int64_t shift() const override { return shift_; }
  /// Asks the service how far the run is, or makes a folder. @throws ConfigError, NetworkError
  int64_t connect(const LogCursors& cursors, int64_t written) override;
  void send(const std::vector<JournalLine>& lines) override;
  void end(const RunEnd& end) override;
  double pause() const override { return is_online() ? kSendSeconds : 0; }
  void set_deadline(std::optional<Deadline> deadline) override {
    api_->options().deadline = deadline;
  }
  std::optional<double> away_seconds() const override { return away_seconds_; }

 private:
  void use(const WandbAccess& access);
  std::string known_id() const;
  bool is_online() const { return api_->access().mode == WandbMode::kOnline; }
  int64_t connect_to_service(const LogCursors& cursors, int64_t written);
  int64_t open_folder(const LogCursors& cursors, int64_t written);
  void keep_cursor();
  void read_earlier(int64_t line);
  void know_column(const std::string& name);
  void add(const JournalLine& line, WandbBatch& batch);
  std::string pictures_of(const Json& list, int64_t line, WandbBatch& batch);
  void add_live(WandbBatch& batch);
  void hand_over(WandbBatch& batch);

  const WandbLogConfig config_;
  std::string entity_, project_;
  std::string run_id_;  // of auto_resume.json or, after begin(), the run's; empty: not known
  std::string new_id_;  // of a run that has none
  std::optional<WandbApi> api_;
  std::optional<double> away_seconds_;  // of the service, when check() asked

  // After begin():
  WandbRun run_;
  bool goes_on_ = false;    // what it has are lines of this log
  int64_t first_line_ = 0;  // of a run that neither the service nor the cursors know
  std::string data_path_;
  std::unique_ptr<WandbTarget> target_;  // null: not connected
  std::optional<LogCursors> in_folder_;  // the cursor of an offline run, beside its rows
  int64_t shift_ = 0;                    // from the numbers of lines to the service's steps
  int64_t next_line_ = 0;                // after the last that target_ got
  int64_t read_before_ = 0;              // lines of earlier starts, for columns_ and summary_
  std::set<std::string> columns_;
  std::vector<std::string> new_columns_;        // that target_ has not got
  std::map<std::string, std::string> summary_;  // JSON texts
  double runtime_before_ = 0;                   // of earlier starts, seconds
  std::vector<WandbUpload> files_;              // that have not arrived
  std::set<std::string> refused_;               // of these and the pictures: they are never sent
  std::optional<ConsoleLines> console_;
  const bool is_live_ = true;              // this process is the run: the machine is its machine
  double stats_at_ = 0, cpu_seconds_ = 0;  // of the last figures of the machine
  int64_t missing_pictures_ = 0;
};

}  // namespace dalle2
