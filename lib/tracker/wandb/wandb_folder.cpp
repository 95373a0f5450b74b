// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_rows.h"

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

class WandbFolder : public WandbRows {
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

  void history(const WandbItems& row, int64_t step) override { file_.write_history(row, step); }
  void column(const std::string& name) override { file_.write_metric(name, kWandbAxis); }
  void file(const WandbUpload& file) override;
  void stats(const WandbItems& figures, double unix_seconds) override {
    file_.write_stats(figures, unix_seconds);
  }
  void console(const std::vector<WandbConsoleLine>& lines) override;
  void flush(const WandbSummary& summary) override;
  void end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) override;

 private:
  std::string path_;
  WandbFile file_;
  std::chrono::steady_clock::time_point summary_at_ = std::chrono::steady_clock::now();
};

void WandbFolder::file(const WandbUpload& file) {
  const fs::path path = fs::path(path_) / "files" / file.name;
  std::error_code ignored;  // the writing says what is wrong
  fs::create_directories(path.parent_path(), ignored);
  write_file_atomically(path.string(), file.path.empty() ? file.content : read_file(file.path));
  file_.write_file(file.name, file.name.starts_with("media/"));
}

/// The records are what `wandb sync` reads; the file is for people, as the service's own client has it.
void WandbFolder::console(const std::vector<WandbConsoleLine>& lines) {
  const fs::path path = fs::path(path_) / "files" / kWandbConsoleFile;
  std::ofstream file(path, std::ios::app);
  for (const WandbConsoleLine& line : lines) {
    file_.write_console(line.text, line.is_error, line.unix_seconds);
    file << line.text << "\n";
  }
  if (!file.flush()) throw ResourceError("{}: cannot be written", path.string());
}

void WandbFolder::flush(const WandbSummary& summary) {
  const auto now = std::chrono::steady_clock::now();
  if (now - summary_at_ < kSummaryEvery) return;
  file_.write_summary(WandbItems(summary.begin(), summary.end()));
  summary_at_ = now;
}

void WandbFolder::end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) {
  file_.write_summary(WandbItems(summary.begin(), summary.end()));
  if (end.outcome == RunEnd::Outcome::kStopped) file_.write_preempting();
  file_.write_exit(end.exit_code, runtime_seconds);
}

}  // namespace

std::unique_ptr<WandbRows> make_wandb_folder(const std::string& parent,
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
