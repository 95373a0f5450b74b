// SPDX-License-Identifier: MIT
#include "tracker/places/copies.h"

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "config/kinds.h"
#include "config/reading/reader.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_record.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr double kForever = std::numeric_limits<double>::infinity();  // seconds

/// Of a folder that no run works in. @throws ConfigError
RunLock lock_at_once(const std::string& data_path) {
  try {
    return RunLock(data_path, {.here = {}, .elsewhere = {}});
  } catch (const Error& held) {
    throw ConfigError("{}\n  A run that works there sends by itself what waits.", held.what());
  }
}

/// The path of the config that the run has written, which has no secrets; empty: there is none.
std::string config_path(const std::string& data_path) {
  for (const ConfigKind& kind : config_kinds()) {
    const fs::path path = fs::path(data_path) / (kind.key + "_config.json");
    std::error_code ignored;
    if (fs::exists(path, ignored)) return path.string();
  }
  return "";
}

/// With every default, as the run sends it; as it is where this version cannot read it.
std::string full_config(const std::string& path) {
  if (path.empty()) return "";
  const std::string text = read_file(path), name = fs::path(path).filename().string();
  try {
    Json full = parse_untrusted_object(
        config_kind_of(name.substr(0, name.find('_')))
            .fill_in(text, {.overrides = {}, .check_available = false, .no_commands = true}));
    const Json::json_pointer commands("/data/allow_pipe");  // which no_commands has set
    const Json stored = parse_untrusted_object(text);
    if (stored.contains(commands)) full[commands] = stored.at(commands);
    return public_config(full.dump());
  } catch (const Error&) {
    return text;
  }
}

/// @throws ConfigError
std::vector<SaveConfig> read_savers(const std::string& path, const std::string& wandb_run) {
  const Json config = path.empty() ? Json() : parse_untrusted_object(read_file(path));
  const Json::json_pointer place("/tracker/save");
  std::vector<SaveConfig> savers;
  if (!config.contains(place)) return savers;
  ReadFindings findings;
  const Limits limits = any_value().one_is_list();
  Reader(findings).read(ValueAt{config.at(place), place.to_string(), limits}, savers);
  findings.faults.throw_if_any(path);
  for (SaveConfig& saver : savers) {
    auto* const wandb = std::get_if<WandbSaveConfig>(&saver);
    if (wandb != nullptr && !wandb->wandb_run_path) wandb->wandb_run_path = wandb_run;
  }
  return savers;
}

/// With the logins of this environment.
void serve_all(Uploads& uploads, const std::string& data_path, const RunRecord& run) {
  std::string faults;
  const std::string wandb_run = run.wandb.substr(0, run.wandb.find('\n'));
  for (const SaveConfig& saver : read_savers(config_path(data_path), wandb_run)) {
    try {
      if (std::shared_ptr<Destination> to = make_destination(saver)) uploads.serve(std::move(to));
    } catch (const Error& error) {
      faults += (faults.empty() ? "" : "\n") + std::string(error.what());
    }
  }
  if (!faults.empty()) throw ConfigError("{}", faults);
}

void sync_files(const std::string& data_path, const RunRecord& run, SyncReport& report) {
  Uploads uploads((fs::path(data_path) / kOutboxFolder).string());
  const size_t before = uploads.waiting().size();
  if (before == 0) return;
  std::string fault;
  try {
    serve_all(uploads, data_path, run);
  } catch (const ConfigError& error) {
    fault = error.what();
  }
  for (const OutboxEntry& entry : uploads.unserved()) {
    report.errors.push_back(
        fmt::format("{} for {} ({}): no saver of the run's config leads there, in this "
                    "environment\n  A login or a signature in an address is not stored: a start of "
                    "the run sends it.",
                    entry.kind,
                    entry.to,
                    entry.target));
  }
  if (!report.errors.empty() && !fault.empty()) report.errors.push_back(fault);
  uploads.begin();
  uploads.begin_end();
  wait_until_sent([&] { return uploads.is_done(); }, [] { return false; }, kForever);
  uploads.end();
  report.left = uploads.waiting().size();
  report.sent = before - report.left;
  for (std::string& error : uploads.take_errors()) report.errors.push_back(std::move(error));
}

/// Follows the log to its end for one W&B run, as the start of the run would. A service that is away is
/// tried for a few seconds. @throws NetworkError a refusal
void sync_rows(const WandbAccess& access,
               const std::string& wandb_run,
               const std::string& data_path,
               const RunRecord& record,
               LogCursors& cursors,
               SyncReport& report) {
  const std::string log = (fs::path(data_path) / kLogFile).string();
  const LogFile file(log);
  WandbBegin begin;
  begin.goes_on = true;
  begin.is_live = false;
  begin.data_path = data_path;
  // A run that was logged offline may have no entity.
  const std::string entity = wandb_run.starts_with('/') ? WandbApi(access, {}).viewer() : "";
  begin.run.info.path = parse_wandb_run_path(entity + wandb_run);
  begin.run.resumed = true;
  begin.run.start_unix_seconds = wall_time_seconds();
  begin.run.config = wandb_items(full_config(config_path(data_path)));
  begin.run.config.insert(begin.run.config.end(), record.process.begin(), record.process.end());
  Follower follower(
      std::make_unique<WandbSink>(access, begin),
      {.path = log,
       .written = [&file] { return file.written(); },
       .log_error = [&report](const std::string& error) { report.errors.push_back(error); }},
      cursors);
  follower.connect_now(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  const int64_t before = follower.waiting();
  follower.start();
  const bool is_finished = !record.finished.empty();
  follower.begin_end({.outcome = is_finished ? RunEnd::Outcome::kDone : RunEnd::Outcome::kStopped,
                      .exit_code = is_finished ? 0 : 75});
  wait_until_sent(
      [&] { return follower.is_done(); }, [&] { return follower.last_was_fault(); }, kForever);
  const int64_t left = follower.is_done() ? 0 : follower.waiting();
  report.rows_left += left;
  report.rows_sent += before - left;
}

/// To the W&B run of each logger.
void sync_all_rows(const std::string& data_path, const RunRecord& run, SyncReport& report) {
  WandbAccess access = find_wandb_access();
  std::error_code ignored;
  const bool has_log = fs::exists(fs::path(data_path) / kLogFile, ignored);
  if (run.wandb.empty() || access.api_key.empty() || !has_log) return;
  access.mode = WandbMode::kOnline;  // whatever the runs of this environment do
  access.console = false;
  LogCursors cursors((fs::path(data_path) / kFollowersFile).string());
  std::string path;
  for (std::istringstream runs(run.wandb); std::getline(runs, path);) {
    try {
      sync_rows(access, path, data_path, run, cursors, report);
    } catch (const NetworkError& refusal) {
      report.errors.emplace_back(refusal.what());
    }
  }
}

}  // namespace

SyncReport sync_run(const std::string& data_path) {
  const std::optional<RunRecord> run = read_run_record(data_path);
  if (!run) {
    throw ConfigError("{}: not the folder of a run; expected the tracker.data_path of one",
                      data_path);
  }
  const RunLock lock = lock_at_once(data_path);
  std::error_code ignored;
  const bool is_home = fs::equivalent(run->home, data_path, ignored);
  const std::optional<RunRecord> at_home = is_home ? std::nullopt : read_run_record(run->home);
  if (at_home && at_home->id == run->id) {
    throw ConfigError(
        "{}: is a copy of {}, and what waits in it is the original's to send\n  Give the original's "
        "folder.",
        data_path,
        run->home);
  }
  SyncReport report;
  sync_files(data_path, *run, report);
  sync_all_rows(data_path, *run, report);
  return report;
}

}  // namespace dalle2
