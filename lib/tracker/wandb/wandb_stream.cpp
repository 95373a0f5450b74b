// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_rows.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstddef>
#include <ctime>
#include <utility>

namespace dalle2 {
namespace {

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

/// What is given comes together in one request.
class WandbStream : public WandbRows {
 public:
  WandbStream(const WandbApi& api,
              WandbRun run,
              const WandbRunState& state,
              std::vector<std::string> columns)
      : api_(api), run_(std::move(run)), state_(state), columns_(std::move(columns)) {}

  void history(const WandbItems& row, int64_t /*step*/) override { rows_.push_back(line_of(row)); }
  void column(const std::string& name) override {
    columns_.push_back(name);
    config_changed_ = true;
  }
  void file(const WandbUpload& file) override { files_.push_back(file); }
  void stats(const WandbItems& figures, double unix_seconds) override;
  void console(const std::vector<WandbConsoleLine>& lines) override;
  void flush(const WandbSummary& summary) override {
    send(WandbItems(summary.begin(), summary.end()), Json::object());
  }
  void end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) override;

 private:
  void send(const WandbItems& summary, Json request);
  Json lines(const WandbItems& summary) const;
  std::string config() const { return wandb_config(run_.config, columns_); }

  const WandbApi& api_;
  WandbRun run_;
  WandbRunState state_;
  std::vector<std::string> columns_;
  bool config_changed_ = false;
  Json rows_ = Json::array(), stats_ = Json::array(), console_ = Json::array();  // lines
  std::vector<WandbUpload> files_;
  std::vector<std::string> uploaded_;  // files that the service has and was not told of
};

void WandbStream::console(const std::vector<WandbConsoleLine>& lines) {
  for (const WandbConsoleLine& line : lines) console_.push_back(console_text(line));
}

void WandbStream::stats(const WandbItems& figures, double unix_seconds) {
  WandbItems items;
  for (const auto& [key, json] : figures) items.emplace_back("system." + key, json);
  items.emplace_back("_timestamp", Json(unix_seconds).dump());
  items.emplace_back("_runtime", Json(unix_seconds - run_.start_unix_seconds).dump());
  items.emplace_back("_wandb", "true");
  stats_.push_back(line_of(items));
}

void WandbStream::send(const WandbItems& summary, Json request) {
  if (std::exchange(config_changed_, false)) {
    WandbRunInfo info = run_.info;
    info.config = config();
    api_.upsert(info);
  }
  // Pictures come before the rows that show them.
  if (const std::vector<WandbUpload> files = std::exchange(files_, {}); !files.empty()) {
    api_.upload(run_.info.path, files);
    for (const WandbUpload& file : files) uploaded_.push_back(file.name);
  }
  Json files = lines(summary);
  if (request.contains("files")) files.update(request["files"]);
  if (!files.empty()) request["files"] = files;
  if (!uploaded_.empty()) request["uploaded"] = uploaded_;
  api_.stream(run_.info.path, request);
  state_.history_lines += static_cast<int64_t>(rows_.size());
  state_.event_lines += static_cast<int64_t>(stats_.size());
  state_.console_lines += static_cast<int64_t>(console_.size());
  rows_ = stats_ = console_ = Json::array();
  uploaded_.clear();
}

/// Rows, figures of the machine and what was printed, by the service's names of files.
Json WandbStream::lines(const WandbItems& summary) const {
  Json files = Json::object();
  const auto add = [&](const char* name, int64_t offset, const Json& content) {
    if (!content.empty()) files[name] = {{"offset", offset}, {"content", content}};
  };
  add("wandb-history.jsonl", state_.history_lines, rows_);
  if (!rows_.empty()) add(kSummaryFile, 0, Json::array({line_of(summary)}));
  add("wandb-events.jsonl", state_.event_lines, stats_);
  add(kWandbConsoleFile, state_.console_lines, console_);
  return files;
}

void WandbStream::end(const RunEnd& end, int64_t runtime_seconds, const WandbSummary& summary) {
  WandbItems whole(summary.begin(), summary.end());
  whole.emplace_back("_wandb", fmt::format(R"({{"runtime": {}}})", runtime_seconds));
  // `wandb sync` makes these of the records.
  file({.name = "config.yaml", .content = config()});  // JSON is YAML, too
  file({.name = kSummaryFile, .content = line_of(whole)});
  Json last = {{"complete", true}, {"exitcode", end.exit_code}};
  if (end.outcome == RunEnd::Outcome::kStopped) last["preempting"] = true;
  last["files"] = {{kSummaryFile, {{"offset", 0}, {"content", {line_of(whole)}}}}};
  send(whole, last);
}

}  // namespace

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

std::unique_ptr<WandbRows> make_wandb_stream(const WandbApi& api,
                                             WandbRun run,
                                             const WandbRunState& state,
                                             std::vector<std::string> columns) {
  return std::make_unique<WandbStream>(api, std::move(run), state, std::move(columns));
}

}  // namespace dalle2
