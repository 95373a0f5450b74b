// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_run.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// What a kill may leave out of the summary of an offline run.
constexpr auto kSummaryEvery = std::chrono::seconds(15);

/// A folder that is not there yet: two starts in a second have different ones.
std::string make_folder(const std::string& parent, const std::string& run_id, double unix_seconds) {
  const fs::path all(parent);
  std::error_code error;
  fs::create_directories(all, error);
  for (auto seconds = static_cast<std::time_t>(unix_seconds); !error; ++seconds) {
    const fs::path folder =
        all / fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", fmt::localtime(seconds), run_id);
    if (!fs::create_directory(folder, error)) continue;
    if (fs::create_directory(folder / "files", error)) return folder.string();
    std::error_code ignored;
    fs::remove(folder, ignored);
  }
  throw ConfigError(
      "{}: cannot be made: {}\n  Set WANDB_DIR to another place.", all.string(), error.message());
}

class WandbFolder : public WandbTarget {
 public:
  WandbFolder(std::string path, const WandbRun& run)
      : path_(std::move(path)),
        file_((fs::path(path_) / fmt::format("run-{}.wandb", run.info.path.run_id)).string()) {
    const WandbRunInfo& info = run.info;
    file_.write_run({.run_id = info.path.run_id,
                     .entity = info.path.entity,
                     .project = info.path.project,
                     .name = info.name,
                     .notes = info.notes,
                     .group = info.group,
                     .job_type = info.job_type,
                     .host = info.host,
                     .tags = info.tags,
                     .config = run.config,
                     .start_unix_seconds = run.start_unix_seconds,
                     .resumed = run.resumed});
    file_.write_metric(kWandbAxis, "");
  }

  void take(const WandbBatch& batch) override {
    for (const std::string& name : batch.columns) file_.write_metric(name, kWandbAxis);
    for (const WandbUpload& file : batch.files) store(file);
    for (const auto& [step, row] : batch.rows) file_.write_history(row, step);
    if (!batch.stats.empty()) file_.write_stats(batch.stats, batch.stats_unix_seconds);
    if (!batch.console.empty()) print(batch.console);
    const auto now = std::chrono::steady_clock::now();
    if (batch.end || now - summary_at_ >= kSummaryEvery) {
      file_.write_summary(WandbItems(batch.summary.begin(), batch.summary.end()));
      summary_at_ = now;
    }
    if (!batch.end) return;
    if (batch.end->outcome == RunEnd::Outcome::kStopped) file_.write_preempting();
    file_.write_exit(batch.end->exit_code, batch.runtime_seconds);
  }

 private:
  void store(const WandbUpload& file) {
    const fs::path path = fs::path(path_) / "files" / file.name;
    std::error_code ignored;  // the writing says what is wrong
    fs::create_directories(path.parent_path(), ignored);
    write_file_atomically(path.string(), file.path.empty() ? file.content : read_file(file.path));
    file_.write_file(file.name, file.name.starts_with("media/"));
  }

  /// The records are what `wandb sync` reads; the file is for people, as the service's own client has it.
  void print(const std::vector<WandbConsoleLine>& lines) {
    const fs::path path = fs::path(path_) / "files" / kWandbConsoleFile;
    std::ofstream file(path, std::ios::app);
    for (const WandbConsoleLine& line : lines) {
      file_.write_console(line.text, line.is_error, line.unix_seconds);
      file << line.text << "\n";
    }
    if (!file.flush()) throw ResourceError("{}: cannot be written", path.string());
  }

  std::string path_;
  WandbFile file_;
  std::chrono::steady_clock::time_point summary_at_ = std::chrono::steady_clock::now();
};

}  // namespace

std::unique_ptr<WandbTarget> make_wandb_folder(const std::string& parent,
                                               const WandbRun& run,
                                               std::string* path) {
  *path = make_folder(parent, run.info.path.run_id, run.start_unix_seconds);
  try {
    return std::make_unique<WandbFolder>(*path, run);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(*path, ignored);
    throw;
  }
}

}  // namespace dalle2
