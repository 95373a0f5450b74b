// SPDX-License-Identifier: MIT
// The two targets of a run.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConsoleFile = "output.log";  ///< of a run, with what was printed
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
    file_.write_run(run);
    file_.write_metric(kWandbAxis, "");
  }

  void take(const WandbBatch& batch) override {
    for (const std::string& name : batch.columns) file_.write_metric(name, kWandbAxis);
    for (const WandbUpload& file : batch.files) store(file);
    for (const auto& [step, row] : batch.rows) file_.write_history(row, step);
    if (!batch.stats.empty()) file_.write_stats(batch.stats, batch.stats_unix_seconds);
    if (!batch.console.empty()) print(batch.console);
    const auto now = std::chrono::steady_clock::now();
    // Not behind rows: if the disk refuses it they would be written again.
    if (batch.end || (batch.rows.empty() && now - summary_at_ >= kSummaryEvery)) {
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
    const fs::path path = fs::path(path_) / "files" / kConsoleFile;
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

constexpr const char* kSummaryFile = "wandb-summary.json";

/// {"a": 1, "b": NaN} as one line.
std::string line_of(const WandbItems& items) {
  std::string line = "{";
  for (const auto& [key, json] : items) {
    if (line.size() > 1) line += ", ";
    line += json_line(key) + ": " + json;
  }
  return line + "}";
}

/// "2026-11-25T15:23:34.272892 text" in UTC, as the service's own client sends it.
std::string console_text(const WandbConsoleLine& line) {
  const auto seconds = static_cast<std::time_t>(line.unix_seconds);
  const auto micros =
      static_cast<int64_t>((line.unix_seconds - static_cast<double>(seconds)) * 1e6);
  return fmt::format("{}{:%Y-%m-%dT%H:%M:%S}.{:06} {}",
                     line.is_error ? "ERROR " : "",
                     fmt::gmtime(seconds),
                     micros,
                     line.text);
}

class WandbStream : public WandbTarget {
 public:
  WandbStream(const WandbApi& api,
              const WandbRun& run,
              const WandbRunState& state,
              const std::vector<std::string>& columns)
      : api_(api), run_(run), state_(state), columns_(columns) {}

  void take(const WandbBatch& batch) override {
    if (!batch.columns.empty()) {
      columns_.insert(columns_.end(), batch.columns.begin(), batch.columns.end());
      WandbRunInfo info = run_.info;
      info.config = wandb_config(run_.config, columns_);
      api_.upsert(info);
    }
    std::vector<WandbUpload> uploads = batch.files;
    WandbItems summary(batch.summary.begin(), batch.summary.end());
    if (batch.end) {  // `wandb sync` makes these of the records
      summary.emplace_back("_wandb", fmt::format(R"({{"runtime": {}}})", batch.runtime_seconds));
      uploads.push_back(
          {.name = "config.yaml", .content = wandb_config(run_.config, columns_)});  // JSON is YAML
      uploads.push_back({.name = kSummaryFile, .content = line_of(summary)});
    }
    // Pictures come before the rows that show them.
    if (!uploads.empty()) api_.upload(run_.info.path, uploads);
    Json request = Json::object();
    for (const WandbUpload& file : uploads) request["uploaded"].push_back(file.name);
    Json rows, stats, console;
    for (const auto& [step, row] : batch.rows) rows.push_back(line_of(row));
    if (!batch.stats.empty()) stats.push_back(stats_line(batch));
    for (const WandbConsoleLine& line : batch.console) console.push_back(console_text(line));
    // Lines by the service's names of files.
    const auto add = [&](const char* name, int64_t& offset, const Json& lines) {
      if (lines.empty()) return;
      request["files"][name] = {{"offset", offset}, {"content", lines}};
      offset += static_cast<int64_t>(lines.size());
    };
    WandbRunState after = state_;
    int64_t from_start = 0;
    add("wandb-history.jsonl", after.history_lines, rows);
    if (!rows.empty() || batch.end) add(kSummaryFile, from_start, Json::array({line_of(summary)}));
    add("wandb-events.jsonl", after.event_lines, stats);
    add(kConsoleFile, after.console_lines, console);
    if (batch.end) {
      request["complete"] = true;
      request["exitcode"] = batch.end->exit_code;
      if (batch.end->outcome == RunEnd::Outcome::kStopped) request["preempting"] = true;
    }
    api_.stream(run_.info.path, request);
    state_ = after;
  }

 private:
  std::string stats_line(const WandbBatch& batch) const {
    WandbItems items;
    for (const auto& [key, json] : batch.stats) items.emplace_back("system." + key, json);
    items.emplace_back("_timestamp", Json(batch.stats_unix_seconds).dump());
    items.emplace_back("_runtime", Json(batch.stats_unix_seconds - run_.start_unix_seconds).dump());
    items.emplace_back("_wandb", "true");
    return line_of(items);
  }

  const WandbApi& api_;
  const WandbRun run_;
  WandbRunState state_;
  std::vector<std::string> columns_;
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

WandbItems wandb_items(const std::string& config) {
  WandbItems items;
  const Json object = parse_untrusted_object(config);
  for (const auto& [key, value] : object.items()) items.emplace_back(key, json_line(value));
  return items;
}

std::string wandb_config(const WandbItems& config, const std::vector<std::string>& columns) {
  WandbItems whole;
  for (const auto& [key, json] : config) whole.emplace_back(key, "{\"value\": " + json + "}");
  // Numbers of fields of the service's messages: 1 the name, 5 the place of the axis in this list,
  // from 1; 6 with 3 says that it was asked for.
  Json definitions = Json::array({{{"1", kWandbAxis}, {"6", {3}}, {"7", Json::array()}}});
  for (const std::string& name : columns) {
    definitions.push_back({{"1", name}, {"5", 1}, {"6", {3}}, {"7", Json::array()}});
  }
  const Json own = {{"value", {{"m", definitions}}}};
  whole.emplace_back("_wandb", json_line(own));
  return line_of(whole);
}

std::unique_ptr<WandbTarget> make_wandb_stream(const WandbApi& api,
                                               const WandbRun& run,
                                               const WandbRunState& state,
                                               const std::vector<std::string>& columns) {
  return std::make_unique<WandbStream>(api, run, state, columns);
}

}  // namespace dalle2
