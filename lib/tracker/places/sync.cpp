// SPDX-License-Identifier: MIT
#include "tracker/places/sync.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "config/shared/save_config_json.h"
#include "io/files/folder_names.h"
#include "tracker/places/uploads.h"
#include "tracker/run_folder/run_files.h"
#include "tracker/run_folder/run_lock.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// outbox.1, outbox.2, ..., outbox.
std::vector<std::string> outboxes_in(const std::string& data_path) {
  const std::string prefix = std::string(kOutboxFolder) + ".";
  std::vector<std::pair<int64_t, std::string>> numbered;
  for (const std::string& name : names_in_folder(data_path)) {
    const bool is_earlier = name.starts_with(prefix);
    if (!is_earlier && name != kOutboxFolder) continue;
    const int64_t last = std::numeric_limits<int64_t>::max();
    const auto number = is_earlier ? number_of_digits(name.substr(prefix.size())) : last;
    if (number) numbered.emplace_back(*number, (fs::path(data_path) / name).string());
  }
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> folders;
  for (auto& [number, folder] : numbered) folders.push_back(std::move(folder));
  return folders;
}

/// Each service that something waits for.
void serve_all(Uploads& uploads, SyncReport& report) {
  for (const OutboxEntry& entry : uploads.unserved()) {
    try {
      std::shared_ptr<Destination> to =
          make_destination(read_save_config(entry.saver, entry.path + " (its saver)"));
      const bool is_same = to != nullptr && to->name() == entry.to;
      if (!is_same) {
        throw ConfigError("it was for {}; the environment of now leads to {}",
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

SyncReport sync_outboxes(const std::string& data_path) {
  std::error_code ignored;
  if (!fs::is_directory(data_path, ignored)) {
    throw ConfigError("{}: no such folder; expected the tracker.data_path of a run", data_path);
  }
  const RunLock lock(data_path);
  SyncReport report;
  for (const std::string& folder : outboxes_in(data_path)) {
    Uploads uploads(folder);
    const size_t before = uploads.waiting().size();
    serve_all(uploads, report);
    const size_t left = uploads.finish(std::numeric_limits<double>::infinity());
    report.sent += before - left;
    report.left += left;
    for (std::string& error : uploads.take_errors()) report.errors.push_back(std::move(error));
  }
  return report;
}

}  // namespace dalle2
