// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_stream.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <utility>

namespace dalle2 {
namespace {

constexpr std::chrono::steady_clock::duration kSendEvery = std::chrono::seconds(5);
/// Without it a run counts as crashed.
constexpr std::chrono::steady_clock::duration kSignOfLifeEvery = std::chrono::seconds(30);
constexpr const char* kSummaryFile = "wandb-summary.json";
constexpr size_t kMostLines = 1000;  // of a request
constexpr size_t kMostConsole = size_t{16} << 20;
constexpr size_t kMostFileBytes = size_t{16} << 20;  ///< that wait; more are sent at once

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

}  // namespace

std::string wandb_config(const WandbItems& config, const std::vector<std::string>& metrics) {
  WandbItems whole;
  for (const auto& [key, json] : config) whole.emplace_back(key, "{\"value\": " + json + "}");
  // Numbers of fields of the service's messages: 1 the name, 5 the place of the axis in this list,
  // from 1; 6 with 3 says that it was asked for.
  Json definitions = Json::array({{{"1", kWandbAxis}, {"6", {3}}, {"7", Json::array()}}});
  for (const std::string& name : metrics) {
    definitions.push_back({{"1", name}, {"5", 1}, {"6", {3}}, {"7", Json::array()}});
  }
  const Json own = {{"value", {{"m", definitions}}}};
  whole.emplace_back("_wandb", json_line(own));
  return line_of(whole);
}

WandbStream::WandbStream(const WandbApi& api, WandbRun run, const WandbRunState& state)
    : api_(api),
      run_(std::move(run)),
      history_lines_(state.history_lines),
      event_lines_(state.event_lines),
      console_lines_(state.console_lines) {}

void WandbStream::metric(const std::string& name) {
  metrics_.push_back(name);
  config_changed_ = true;
}

/// The file of a very long run keeps its beginning and its end; the service has had the lines before.
void WandbStream::console(const std::vector<WandbConsoleLine>& lines) {
  for (const WandbConsoleLine& line : lines) console_ += line.text + "\n";
  if (console_.size() > kMostConsole) {
    const size_t begin = console_.find('\n', kMostConsole / 4) + 1;
    const size_t end = console_.find('\n', console_.size() - kMostConsole / 4) + 1;
    console_.replace(begin, end - begin, "(lines are left out here)\n");
  }
  pending_.console.insert(pending_.console.end(), lines.begin(), lines.end());
}

void WandbStream::flush(const WandbSummary& summary) {
  const auto quiet = std::chrono::steady_clock::now() - sent_at_;
  const bool is_idle = pending_.rows.empty() && pending_.stats.empty() && pending_.files.empty() &&
                       pending_.console.empty();
  if (quiet < (is_idle ? kSignOfLifeEvery : kSendEvery) && !is_full()) return;
  send(WandbItems(summary.begin(), summary.end()));
}

void WandbStream::send(const WandbItems& summary) {
  sent_at_ = std::chrono::steady_clock::now();
  if (std::exchange(config_changed_, false)) {
    WandbRunInfo info = run_.info;
    info.config = config();
    api_.upsert(info);
  }
  send_files(pending_.files);
  pending_.files.clear();
  file_bytes_ = 0;
  send_lines(summary, Json::object());
}

void WandbStream::file(const WandbUpload& file) {
  file_bytes_ += file.content.size();
  pending_.files.push_back(file);
}

/// A start may add the rows of a long outage, far more than a step makes.
bool WandbStream::is_full() const {
  return pending_.rows.size() >= kMostLines || file_bytes_ >= kMostFileBytes;
}

std::string WandbStream::config() const {
  return wandb_config(run_.config, metrics_);
}

/// Pictures come before the rows that show them.
void WandbStream::send_files(const std::vector<WandbUpload>& files) {
  if (files.empty()) return;
  api_.upload(run_.info.path, files);
  for (const WandbUpload& file : files) uploaded_.push_back(file.name);
}

/// What waits, in as many requests as it takes, and with the last of them `last`.
void WandbStream::send_lines(const WandbItems& summary, const Json& last) {
  bool is_last = false;
  while (!is_last) {
    const size_t rows = std::min(pending_.rows.size(), kMostLines);
    is_last = rows == pending_.rows.size();
    Json request = is_last ? last : Json::object();
    Json lines = next_lines(summary, rows);
    if (request.contains("files")) lines.update(request["files"]);
    if (!lines.empty()) request["files"] = lines;
    if (!uploaded_.empty()) request["uploaded"] = uploaded_;
    api_.stream(run_.info.path, request);
    history_lines_ += static_cast<int64_t>(rows);
    event_lines_ += static_cast<int64_t>(pending_.stats.size());
    console_lines_ += static_cast<int64_t>(pending_.console.size());
    pending_.rows.erase(pending_.rows.begin(),
                        pending_.rows.begin() + static_cast<std::ptrdiff_t>(rows));
    pending_.stats.clear();
    pending_.console.clear();
    uploaded_.clear();
  }
}

/// The first rows, all figures of the machine and all that was printed, by the service's names of files.
Json WandbStream::next_lines(const WandbItems& summary, size_t rows) const {
  Json files = Json::object();
  Json lines = Json::array();
  for (size_t i = 0; i < rows; ++i) lines.push_back(line_of(pending_.rows[i].items));
  if (rows > 0) {
    files["wandb-history.jsonl"] = {{"offset", history_lines_}, {"content", lines}};
    files[kSummaryFile] = {{"offset", 0}, {"content", {line_of(summary)}}};
  }
  lines = Json::array();
  for (const WandbStats& stats : pending_.stats) {
    WandbItems items;
    for (const auto& [key, json] : stats.items) items.emplace_back("system." + key, json);
    items.emplace_back("_timestamp", Json(stats.unix_seconds).dump());
    items.emplace_back("_runtime", Json(stats.unix_seconds - run_.start_unix_seconds).dump());
    items.emplace_back("_wandb", "true");
    lines.push_back(line_of(items));
  }
  if (!lines.empty()) files["wandb-events.jsonl"] = {{"offset", event_lines_}, {"content", lines}};
  lines = Json::array();
  for (const WandbConsoleLine& line : pending_.console) lines.push_back(console_text(line));
  if (!lines.empty()) files[kWandbConsoleFile] = {{"offset", console_lines_}, {"content", lines}};
  return files;
}

void WandbStream::end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) {
  WandbItems whole(summary.begin(), summary.end());
  whole.emplace_back("_wandb", fmt::format(R"({{"runtime": {}}})", runtime_seconds));
  send(whole);
  // Not among what is pending: `wandb sync` makes these of the records.
  std::vector<WandbUpload> files = {
      {.name = "config.yaml", .content = config()},  // JSON is YAML, too
      {.name = kSummaryFile, .content = line_of(whole)}};
  if (!console_.empty()) files.push_back({.name = kWandbConsoleFile, .content = console_});
  send_files(files);
  Json last = {{"complete", true}, {"exitcode", end.exit_code}};
  if (end.outcome == RunEnd::Outcome::kStopped) last["preempting"] = true;
  last["files"] = {{kSummaryFile, {{"offset", 0}, {"content", {line_of(whole)}}}}};
  send_lines(whole, last);
}

}  // namespace dalle2
