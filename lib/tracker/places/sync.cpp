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
#include "tracker/run_folder/own_files.h"
#include "tracker/run_folder/run_files.h"
#include "tracker/run_folder/run_lock.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Whether a folder is an outbox itself: "outbox", or "outbox.2" of an earlier run.
bool is_outbox(const fs::path& folder) {
  const std::string name = folder.filename().string(), prefix = std::string(kOutboxFolder) + ".";
  const bool is_earlier = name.starts_with(prefix) && number_of_digits(name.substr(prefix.size()));
  return is_earlier || name == kOutboxFolder;
}

/// What waits there is older than what the run of now may have sent to the same places.
void name_earlier_outboxes(const fs::path& data_path) {
  for (const std::string& name : names_in_folder(data_path.string())) {
    const std::string folder = (data_path / name).string();
    if (name == kOutboxFolder || !is_outbox(folder) || !Outbox::has_entries(folder)) continue;
    log_info(
        "track",
        "{}: files of an earlier run wait here and are not sent, because they could replace newer "
        "ones. `dalle2-train sync {}` sends them",
        folder,
        folder);
  }
}

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
  std::error_code ignored;
  const fs::path given = fs::path(data_path).lexically_normal();
  const fs::path path = given.has_filename() ? given : given.parent_path();
  const bool names_outbox = is_outbox(path) && fs::is_directory(path, ignored) &&
                            !fs::exists(path / kRecordFile, ignored);
  const fs::path run = names_outbox ? fs::absolute(path).parent_path() : path;
  if (!fs::is_regular_file(run / kRecordFile, ignored)) {
    throw ConfigError("{}: not the folder of a run; expected the tracker.data_path of one",
                      data_path);
  }
  const RunLock lock(run.string());
  if (OwnFiles(run.string()).is_copy()) {
    throw ConfigError(
        "{}: is a copy of a run's folder, and what waits in it is the original's to send\n  Give the "
        "original's folder.",
        run.string());
  }
  const std::string folder = (names_outbox ? path : run / kOutboxFolder).string();
  if (!names_outbox) name_earlier_outboxes(run);
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
