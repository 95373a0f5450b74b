// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_stream.h"

#include <algorithm>
#include <utility>

namespace dalle2 {
namespace {

constexpr auto kSendEvery = std::chrono::seconds(5);
constexpr auto kSignOfLifeEvery = std::chrono::seconds(30);  // without it a run counts as crashed
constexpr size_t kMostLines = 1000;                          // of a request

}  // namespace

std::string wandb_line(const WandbItems& items) {
  std::string line = "{";
  for (const auto& [key, json] : items) {
    if (line.size() > 1) line += ", ";
    line += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": " + json;
  }
  return line + "}";
}

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
  whole.emplace_back("_wandb", own.dump(-1, ' ', false, Json::error_handler_t::replace));
  return wandb_line(whole);
}

WandbStream::WandbStream(const WandbApi& api, WandbRun run, const WandbRunState& state)
    : api_(api),
      run_(std::move(run)),
      history_lines_(state.history_lines),
      event_lines_(state.event_lines) {}

void WandbStream::metric(const std::string& name) {
  metrics_.push_back(name);
  config_changed_ = true;
}

void WandbStream::flush() {
  const auto quiet = std::chrono::steady_clock::now() - sent_at_;
  const bool is_idle = pending_.rows.empty() && pending_.stats.empty() && pending_.files.empty();
  if (quiet < (is_idle ? std::chrono::steady_clock::duration(kSignOfLifeEvery) : kSendEvery))
    return;
  send();
}

void WandbStream::send() {
  sent_at_ = std::chrono::steady_clock::now();
  if (std::exchange(config_changed_, false)) {
    WandbRunInfo info = run_.info;
    info.config = config();
    api_.upsert(info);
  }
  send_files();
  send_lines(Json::object());
}

std::string WandbStream::config() const {
  return wandb_config(run_.config, metrics_);
}

/// Pictures come before the rows that show them.
void WandbStream::send_files() {
  if (pending_.files.empty()) return;
  api_.upload(run_.info.path, pending_.files);
  pending_.files.clear();
}

void WandbStream::send_lines(Json content) {
  const bool ends = content.contains("complete");
  do {
    Json files = Json::object();
    const size_t rows = std::min(pending_.rows.size(), kMostLines);
    Json lines = Json::array();
    for (size_t i = 0; i < rows; ++i) lines.push_back(wandb_line(pending_.rows[i].items));
    if (rows > 0) {
      files["wandb-history.jsonl"] = {{"offset", history_lines_}, {"content", lines}};
      files["wandb-summary.json"] = {{"offset", 0}, {"content", {wandb_line(summary_)}}};
    }
    lines = Json::array();
    for (const WandbStats& stats : pending_.stats) {
      WandbItems items = stats.items;
      items.emplace_back("_timestamp", Json(stats.unix_seconds).dump());
      items.emplace_back("_runtime", Json(stats.unix_seconds - run_.start_unix_seconds).dump());
      items.emplace_back("_wandb", "true");
      for (auto& [key, json] : items) {
        if (!key.starts_with('_')) key.insert(0, "system.");
      }
      lines.push_back(wandb_line(items));
    }
    if (!lines.empty())
      files["wandb-events.jsonl"] = {{"offset", event_lines_}, {"content", lines}};
    const bool is_last = rows == pending_.rows.size();
    Json request = is_last ? content : Json::object();
    if (!files.empty()) request["files"] = files;
    api_.stream(run_.info.path, request);
    history_lines_ += static_cast<int64_t>(rows);
    event_lines_ += static_cast<int64_t>(pending_.stats.size());
    pending_.rows.erase(pending_.rows.begin(), pending_.rows.begin() + static_cast<long>(rows));
    pending_.stats.clear();
    if (is_last && ends) return;
  } while (!pending_.rows.empty());
}

void WandbStream::end(const RunEnd& end, int64_t runtime_seconds) {
  file({.name = "config.yaml", .content = config()});  // JSON is YAML, too
  file({.name = "wandb-summary.json", .content = wandb_line(summary_)});
  send();
  Json last = {{"complete", true}, {"exitcode", end.exit_code}};
  if (end.outcome == RunEnd::Outcome::kStopped) last["preempting"] = true;
  WandbItems summary = summary_;
  summary.emplace_back("_wandb", fmt::format(R"({{"runtime": {}}})", runtime_seconds));
  last["files"] = {{"wandb-summary.json", {{"offset", 0}, {"content", {wandb_line(summary)}}}}};
  send_lines(last);
}

}  // namespace dalle2
