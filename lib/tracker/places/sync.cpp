// SPDX-License-Identifier: MIT
#include "tracker/places/sync.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "config/shared/save_config_json.h"
#include "io/files/folder_names.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_lock.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Each service that something waits for.
void serve_all(Uploads& uploads, SyncReport& report) {
  for (const OutboxEntry& entry : uploads.unserved()) {
    try {
      std::shared_ptr<Destination> to =
          make_destination(read_save_config(entry.saver, entry.path + " (its saver)"));
      const bool is_same = to != nullptr && to->name() == entry.to;
      if (!is_same) {
        throw ConfigError("it was for {}, but the environment now leads to {}",
                          entry.to,
                          to == nullptr ? "files of this machine" : to->name());
      }
      uploads.serve({to, [saver = entry.saver](const std::string&) { return saver; }});
    } catch (const Error& error) {
      report.errors.push_back(fmt::format("{} for {}: {}", entry.kind, entry.to, error.what()));
    }
  }
}

}  // namespace

SyncReport sync_outbox(const std::string& data_path) {
  const std::optional<RunRecord> run = read_run_record(data_path);
  if (!run) {
    throw ConfigError("{}: not the folder of a run; expected the tracker.data_path of one",
                      data_path);
  }
  const RunLock lock(data_path);
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
  const std::string folder = (fs::path(data_path) / kOutboxFolder).string();
  SyncReport report;
  Uploads uploads(folder);
  const size_t before = uploads.waiting().size();
  serve_all(uploads, report);
  uploads.begin();
  report.left = uploads.finish(std::numeric_limits<double>::infinity());
  report.sent = before - report.left;
  for (std::string& error : uploads.take_errors()) report.errors.push_back(std::move(error));
  return report;
}

}  // namespace dalle2
