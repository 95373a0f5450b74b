// SPDX-License-Identifier: MIT
#include "tracker/places/sync.h"

#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/untrusted_json.h"
#include "config/reading/reader.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_lock.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Of a folder that no run works in. @throws ConfigError
RunLock lock_at_once(const std::string& data_path) {
  try {
    return RunLock(data_path, {.here = {}, .elsewhere = {}});
  } catch (const Error& held) {
    throw ConfigError("{}\n  A run that works there sends by itself what waits.", held.what());
  }
}

/// Of the config that the run has written, which has no secrets. @throws ConfigError
std::vector<SaveConfig> read_savers(const std::string& data_path, const RunRecord& run) {
  std::vector<SaveConfig> savers;
  for (const std::string& name : names_ending(data_path, "_config.json")) {
    const std::string path = (fs::path(data_path) / name).string();
    const Json config = parse_untrusted_object(read_file(path));
    const Json::json_pointer place("/tracker/save");
    if (!config.contains(place)) continue;
    ReadFindings findings;
    const Limits limits = any_value().one_is_list();
    std::vector<SaveConfig> of_file;
    Reader(findings).read(ValueAt{config.at(place), place.to_string(), limits}, of_file);
    findings.faults.throw_if_any(path);
    savers.insert(savers.end(), of_file.begin(), of_file.end());
  }
  for (SaveConfig& saver : savers) {
    auto* const wandb = std::get_if<WandbSaveConfig>(&saver);
    if (wandb != nullptr && !wandb->wandb_run_path) wandb->wandb_run_path = run.wandb;
  }
  return savers;
}

/// Says why files have nobody who sends them.
void tell_unserved(const Uploads& uploads, std::vector<std::string>& errors) {
  for (const OutboxEntry& entry : uploads.unserved()) {
    const char* const why =
        entry.has_secret
            ? "the address has a login or a signature, which is not stored: a start of the run sends it"
            : "no saver of the run's config leads there, in this environment";
    errors.push_back(fmt::format("{} for {} ({}): {}", entry.kind, entry.to, entry.target, why));
  }
}

}  // namespace

SyncReport sync_outbox(const std::string& data_path) {
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
  Uploads uploads((fs::path(data_path) / kOutboxFolder).string());
  const size_t before = uploads.waiting_count();
  if (before == 0) return report;
  std::vector<std::string> faults;
  for (const SaveConfig& saver : read_savers(data_path, *run)) {
    try {
      if (std::shared_ptr<Destination> to = make_destination(saver)) uploads.serve(std::move(to));
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  }
  tell_unserved(uploads, report.errors);
  if (!report.errors.empty())
    report.errors.insert(report.errors.end(), faults.begin(), faults.end());
  uploads.begin();
  report.left = uploads.finish(std::numeric_limits<double>::infinity());
  report.sent = before - report.left;
  for (std::string& error : uploads.take_errors()) report.errors.push_back(std::move(error));
  return report;
}

}  // namespace dalle2
