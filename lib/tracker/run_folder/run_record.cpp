// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_record.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/disk_io.h"
#include "io/files/walk_folder.h"
#include "net/url.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// The one list of what run.json holds.
template <class Record, class Visitor>
void visit_fields(Record& record, Visitor&& visit) {
  visit("id", record.id);
  visit("token", record.token);
  visit("began", record.began);
  visit("job", record.job);
  visit("home", record.home);
  visit("started_in", record.started_in);
  visit("began_from", record.began_from);
  visit("wandb", record.wandb);
  visit("finished", record.finished);
  visit("has_saved", record.has_saved);
  visit("was_empty", record.was_empty);
  visit("first_line", record.first_line);
  visit("copies", record.copies);
  visit("process", record.process);
}

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{200};  // between two tries

/// Who holds the lock, as the file says.
struct Holder {
  bool is_here = false;
  std::string text = "another process";
};

Holder holder_of(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const Json json = parse_untrusted_object(read_file(path));
  try {
    const std::string host = json.at("host").get<std::string>();
    return {host == host_name(),
            fmt::format("process {} on {}, since {}",
                        json.at("pid").get<int64_t>(),
                        host,
                        json.at("start").get<std::string>())};
  } catch (const Json::exception&) {
    return {};
  }
}

[[noreturn]] void throw_unreadable(const std::string& path, const std::string& why) {
  throw DataError(
      "{}: {}; expected what a run writes there\n  Put a copy of the file back, choose another "
      "/tracker/data_path, or remove it: with /tracker/log/auto_resume the folder then becomes a "
      "run again by its checkpoint.pth.",
      path,
      why);
}

}  // namespace

std::string make_run_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/uuid") >> id;
  if (id.size() != 36) throw ResourceError("the system gives no random UUID for the id of the run");
  return id;
}

std::optional<RunRecord> read_run_record(const std::string& folder) {
  const std::string path = (fs::path(folder) / kRecordFile).string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const Json json = parse_untrusted_object(read_file(path));
  if (json.is_null()) throw_unreadable(path, "is no JSON object");
  RunRecord record;
  try {
    visit_fields(record, [&](const char* key, auto& value) { json.at(key).get_to(value); });
  } catch (const Json::exception& error) {
    throw_unreadable(path, json_error_text(error));
  }
  if (record.id.empty() || record.token.empty()) throw_unreadable(path, "has an empty id or token");
  return record;
}

void write_run_record(const std::string& folder, const RunRecord& record) {
  Json json;
  visit_fields(record, [&](const char* key, const auto& value) { json[key] = value; });
  write_file_atomically((fs::path(folder) / kRecordFile).string(),
                        json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

std::string this_job() {
  if (const std::string id = environment("SLURM_JOB_ID"); !id.empty()) return "slurm " + id;
  const std::string id = environment("TORCHELASTIC_RUN_ID");
  if (id.empty()) return "";
  // "none" unless the user gives one; the agent that restarts the processes stays.
  return id == "none" ? fmt::format("torchrun {} {}", host_name(), ::getppid()) : "torchrun " + id;
}

bool is_restarted_job() {
  return std::atoi(environment("SLURM_RESTART_COUNT").c_str()) > 0 ||
         std::atoi(environment("TORCHELASTIC_RESTART_COUNT").c_str()) > 0;
}

RunLock::RunLock(const std::string& folder, const LockTimes& times)
    : folder_(folder), path_((fs::path(folder) / kLockFile).string()) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw ConfigError("/tracker/data_path: '{}': {}", folder, error.message());
  const Clock::time_point began = Clock::now();
  const bool attended = ::isatty(STDIN_FILENO) == 1;
  for (bool told = false; !try_once(); told = true) {
    const Holder holder = holder_of(path_);
    const bool is_short = holder.is_here || attended;
    const auto most = is_short ? times.here : times.elsewhere;
    if (!told && most.count() > 0) {
      log_info("track",
               "{} is in use by {}: waiting for up to {} s",
               folder,
               holder.text,
               std::chrono::duration_cast<std::chrono::seconds>(most).count());
    }
    if (times.while_waiting) times.while_waiting();
    if (Clock::now() - began < most) {
      std::this_thread::sleep_for(std::min(kPause, most));
      continue;
    }
    const std::string message = fmt::format(
        "/tracker/data_path: a run works in {}: {}\n  Wait for it or end it, or choose another "
        "data_path.",
        folder,
        holder.text);
    if (is_short) throw ConfigError("{}", message);
    throw NetworkError("{}", message);
  }
}

/// @return false while another process holds the lock
bool RunLock::try_once() {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  std::error_code ignored;
  // Another start is about to set the folder aside, or has.
  if (descriptor_ < 0 && errno == ENOENT && fs::create_directories(folder_, ignored)) return false;
  if (descriptor_ < 0) throw ConfigError("/tracker/data_path: '{}': {}", path_, errno_text(errno));
  if (fails_here("flock") || ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const int reason = errno;
    if (reason == EWOULDBLOCK || reason == EINTR) {
      ::close(std::exchange(descriptor_, -1));
      return false;
    }
    log_warning("track",
                "{}: cannot be locked here ({}): do not start two runs in one data_path at once",
                path_,
                errno_text(reason));
  }
  // Another start may have set the folder aside between open() and flock().
  struct stat held {
  }, named{};
  if (::fstat(descriptor_, &held) != 0 || ::stat(path_.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino || held.st_dev != named.st_dev) {
    ::close(std::exchange(descriptor_, -1));
    fs::create_directories(folder_, ignored);
    return false;
  }
  const std::string text =
      Json{{"host", host_name()}, {"pid", ::getpid()}, {"start", utc_now()}}.dump() + "\n";
  if (::ftruncate(descriptor_, 0) != 0 ||
      ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    log_warning("track", "{}: cannot say who holds it: {}", path_, errno_text(errno));
  }
  return true;
}

RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string snapshot_name(const SnapshotPosition& position) {
  return fmt::format("epoch{:04}_sample{:010}_step{:08}.pth",
                     position.epoch,
                     position.samples_seen,
                     position.step);
}

std::string averages_name(int64_t step) {
  return fmt::format("step{:08}.pth", step);
}

std::optional<SnapshotPosition> snapshot_position(const std::string& name) {
  SnapshotPosition at;
  constexpr const char* kForm = "epoch%" SCNd64 "_sample%" SCNd64 "_step%" SCNd64;
  const int found =
      std::sscanf(name.c_str(), kForm, &at.epoch, &at.samples_seen, &at.step);  // NOLINT
  const bool fits = found == 3 && name.find('-') == std::string::npos && snapshot_name(at) == name;
  return fits ? std::optional(at) : std::nullopt;
}

std::vector<SnapshotPosition> snapshots_to_remove(std::vector<SnapshotPosition> all,
                                                  const SnapshotPosition& current,
                                                  const SnapshotRules& rules) {
  std::ranges::sort(all);
  const auto last = static_cast<size_t>(rules.keep_last) + 1;
  const size_t first_of_last = all.size() > last ? all.size() - last : 0;
  std::vector<SnapshotPosition> removed;
  int64_t multiple = 0;  // of keep_every, that the last one kept for good has reached
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t reached = rules.keep_every ? all[i].samples_seen / *rules.keep_every : 0;
    const bool for_good = reached > multiple;
    multiple = std::max(multiple, reached);
    if (!for_good && i < first_of_last && all[i] != current) removed.push_back(all[i]);
  }
  return removed;
}

std::vector<SnapshotPosition> kept_snapshots(const std::string& folder) {
  std::vector<SnapshotPosition> found;
  const WalkEnd end = walk_folder(folder, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (const auto position = snapshot_position(name)) found.push_back(*position);
  });
  if (end.error && end.error != std::errc::no_such_file_or_directory) {  // not there: none yet
    throw DataError("{}: the folder cannot be read: {}", folder, end.error.message());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

}  // namespace dalle2
