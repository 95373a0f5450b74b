// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/fail_point.h"
#include "tracker/run_folder/stale_parts.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Between two looks at a lock that is waited for.
constexpr std::chrono::milliseconds kLockPause{2000};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Field 22 of /proc/PID/stat; none if there is no such process, or only what is left of one.
std::optional<int64_t> start_time_of(int64_t pid) {
  const std::string line = first_line(fmt::format("/proc/{}/stat", pid));
  // The name of the program, in brackets, may hold blanks and brackets.
  size_t at = line.rfind(')');
  if (at == std::string::npos || at + 2 >= line.size()) return std::nullopt;
  if (line[at + 2] == 'Z' || line[at + 2] == 'X') return std::nullopt;  // killed, not waited for
  for (int field = 3; field <= 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoll(line.c_str() + at, nullptr, 10);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::optional<LockOwner> parse_owner(const std::string& content) {
  const Json json = parse_untrusted_object(content);
  if (json.is_null()) return std::nullopt;
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : int64_t{0};
  };
  LockOwner owner{.host = text("host"),
                  .boot_id = text("boot_id"),
                  .pid_namespace = text("pid_namespace"),
                  .pid = number("pid"),
                  .start_time = number("start_time"),
                  .since = text("since")};
  if (owner.host.empty() || owner.boot_id.empty() || owner.pid <= 0) return std::nullopt;
  return owner;
}

/// Of a lock that nobody holds, although its file is there.
constexpr const char* kFree = "free_since";

bool is_free(const std::string& content) {
  const Json json = parse_untrusted_object(content);
  return !json.is_null() && json.contains(kFree);
}

enum class Owner { kAlive, kDead, kUnknown };

Owner judge(const LockOwner& owner) {
  const LockOwner own = this_process();
  if (owner.boot_id != own.boot_id) {
    return owner.host == own.host ? Owner::kDead : Owner::kUnknown;
  }
  // The same kernel, but another container: its processes cannot be seen from here.
  if (!owner.pid_namespace.empty() && owner.pid_namespace != own.pid_namespace) {
    return Owner::kUnknown;
  }
  return start_time_of(owner.pid) == owner.start_time ? Owner::kAlive : Owner::kDead;
}

/// None if there is none.
std::optional<LockFile> read_lock(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  struct stat status = {};
  if (!file || ::stat(path.c_str(), &status) != 0) return std::nullopt;
  return LockFile{{std::istreambuf_iterator<char>(file), {}},
                  int64_t{status.st_mtim.tv_sec} * 1000 + status.st_mtim.tv_nsec / 1'000'000};
}

/// @param key that names the folder @param path of the folder or its lock
[[noreturn]] void throw_cannot_make(const std::string& key,
                                    const std::string& path,
                                    int error_number) {
  const std::string text =
      fmt::format("{}: '{}' cannot be made: {}", key, path, errno_text(error_number));
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      throw ResourceError("{}\n  Free some space, or choose another {}.", text, key);
    case EIO:
      throw ResourceError("{}\n  The disk or the network file system fails.", text);
    case ENAMETOOLONG:
      throw ConfigError(
          "{}\n  Choose another {}: a name may have 255 bytes, and a path 4,095.", text, key);
    default:
      throw ConfigError(
          "{}\n  Make the folder writable for this user, or choose another {}.", text, key);
  }
}

/// A new file with `content`. @return its descriptor is closed; false if there is a file already
bool create(const std::string& key, const std::string& path, const std::string& content) {
  const int file =
      fails_here("lock") ? -1 : ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST) return false;
  if (file < 0) throw_cannot_make(key, path, errno);
  const ssize_t written = ::write(file, content.data(), content.size());
  const int error_number = written < 0 ? errno : ENOSPC;
  ::close(file);
  if (written == static_cast<ssize_t>(content.size())) return true;
  ::unlink(path.c_str());
  throw_cannot_make(key, path, error_number);
}

/// A name that no other starter uses: sweep_parts_of_lock() knows it.
std::string aside_of(const std::string& lock) {
  static std::atomic<int> number{0};
  return fmt::format("{}.{}.{}.{}.part", lock, host_name(), ::getpid(), ++number);
}

/// Now, by the clock of the file system that `lock` is on.
int64_t file_system_now_ms(const std::string& key, const std::string& lock) {
  const std::string probe = aside_of(lock);
  create(key, probe, "now");
  const std::optional<LockFile> file = read_lock(probe);
  ::unlink(probe.c_str());
  return file ? file->touched_ms : int64_t{std::time(nullptr)} * 1000;
}

/// "process 17", which holds a flock of the file, as far as /proc/locks says.
std::string flock_holder(int descriptor) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) return "another process";
  std::ifstream locks("/proc/locks");
  for (std::string line;
       std::getline(locks, line);) {  // "1: FLOCK  ADVISORY  WRITE 17 fe:01:99 0 EOF"
    std::istringstream words(line);
    std::string number, sort, advisory, mode, pid, place;
    words >> number >> sort >> advisory >> mode >> pid >> place;
    if (sort == "FLOCK" && place.ends_with(fmt::format(":{}", status.st_ino)))
      return "process " + pid;
  }
  return "another process";
}

/// Starters on one machine come one after the other. File systems that cannot lock a folder have
/// the care with which a lock is made and taken over.
class FolderLock {
 public:
  /// @throws ConfigError if another program keeps the folder locked, StoppedError after a stop signal
  FolderLock(const LockPlace& place, const LockTimes& times)
      : descriptor_(::open(place.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr std::chrono::milliseconds kPause{50};
    std::chrono::milliseconds waited{0};
    while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) return;
      if (waited < times.folder && stop_requested() == 0) {
        std::this_thread::sleep_for(kPause);
        waited += kPause;
        continue;
      }
      const std::string holder = flock_holder(descriptor_);
      ::close(descriptor_);
      const std::string text =
          fmt::format("{}: '{}' is locked by {} (flock)", place.key, place.folder, holder);
      if (stop_requested() != 0) throw StoppedError("{}", text);
      throw ConfigError(
          "{}\n  A run locks its folder itself: start it without `flock`, end that process, or choose "
          "another {}.",
          text,
          place.key);
    }
  }
  ~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_;
};

/// Takes away the lock that was judged dead, and no other.
void remove_dead(const std::string& key, const std::string& path, const LockFile& dead) {
  const std::string aside = aside_of(path);
  if (::rename(path.c_str(), aside.c_str()) != 0) {
    if (errno == ENOENT) return;  // another starter was faster
    throw_cannot_make(key, path, errno);
  }
  const std::optional<LockFile> moved = read_lock(aside);
  // Another starter took the dead lock over in the meantime: what was moved is its lock.
  if (moved && moved->content != dead.content && ::link(aside.c_str(), path.c_str()) != 0) {
    if (errno != EEXIST) create(key, path, moved->content);
  }
  ::unlink(aside.c_str());
}

[[noreturn]] void throw_held(const LockPlace& place,
                             const std::string& lock,
                             const std::optional<LockOwner>& owner,
                             Owner state,
                             const LockTimes& times,
                             int64_t age_ms) {
  // Of a process that cannot be seen from here; one that is known to be alive keeps its lock.
  const std::string unless_dead = fmt::format(
      ", or choose another {}.\n  If you are sure that no such process runs, delete {}: it is "
      "taken over automatically {} seconds after its last sign of life, which was {} seconds ago.",
      place.key,
      lock,
      times.stale.count() / 1000,
      std::max<int64_t>(age_ms, 0) / 1000);
  if (!owner) {
    throw ConfigError(
        "{}: '{}' may be in use: its lock says nothing of the process that holds it\n  Wait{}",
        place.key,
        place.folder,
        unless_dead);
  }
  throw ConfigError(
      "{}: '{}' is in use by process {} on host {} since {}\n"
      "  {} Wait until it ends, stop it{}",
      place.key,
      place.folder,
      owner->pid,
      owner->host,
      owner->since,
      place.clash,
      state == Owner::kAlive
          ? fmt::format(" (kill -INT {}), or choose another {}.", owner->pid, place.key)
          : unless_dead);
}

}  // namespace

LockOwner this_process() {
  const int64_t pid = ::getpid();
  std::error_code error;
  return {.host = host_name(),
          .boot_id = first_line("/proc/sys/kernel/random/boot_id"),
          .pid_namespace = fs::read_symlink("/proc/self/ns/pid", error).string(),
          .pid = pid,
          .start_time = start_time_of(pid).value_or(0),
          .since = utc_now()};
}

std::string lock_text(const LockOwner& owner) {
  Json json;
  json["host"] = owner.host;
  json["pid"] = owner.pid;
  json["since"] = owner.since;
  json["start_time"] = owner.start_time;
  json["boot_id"] = owner.boot_id;
  json["pid_namespace"] = owner.pid_namespace;
  return json.dump() + "\n";
}

RunLock::RunLock(const LockPlace& place, const LockTimes& times)
    : place_(place),
      path_((fs::path(place.folder) / place.file).string()),
      content_(lock_text(this_process())),
      times_(times) {
  std::error_code error;
  made_folder_ = fs::create_directories(place.folder, error);
  if (error) throw_cannot_make(place.key, place.folder, error.value());
  if (struct stat made = {}; ::stat(place.folder.c_str(), &made) == 0) folder_inode_ = made.st_ino;
  try {
    while (!acquire()) {
      times_.while_waiting();
      std::this_thread::sleep_for(
          std::min<std::chrono::milliseconds>(kLockPause, times_.stale / 10));
    }
  } catch (...) {
    remove_folder_if_made();
    throw;
  }
  // Signals are for the threads of the run.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  keeper_ = std::thread([this] { keep_fresh(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  keeper_.join();
  release();
  remove_folder_if_made();
}

void RunLock::release() {
  const std::optional<LockFile> file = read_lock(path_);
  if (!file || file->content != content_) return;
  if (stays_) {
    const std::string aside = aside_of(path_);
    try {
      create(place_.key, aside, Json{{kFree, utc_now()}}.dump() + "\n");
      if (::rename(aside.c_str(), path_.c_str()) == 0) return;
      ::unlink(aside.c_str());
    } catch (const Error&) {  // the disk fails: as without it
    }
  }
  ::unlink(path_.c_str());
}

void RunLock::remove_folder_if_made() {
  std::error_code not_empty;
  if (made_folder_) fs::remove(place_.folder, not_empty);
}

/// @return false if it is worth waiting for
bool RunLock::acquire() {
  constexpr int kAttempts = 20;  // others may be starting, ending and taking over at the same time
  const FolderLock one_at_a_time(place_, times_);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (make()) {
      sweep_parts_of_lock(path_);
      return true;
    }
    const std::optional<LockFile> file = read_lock(path_);
    if (!file) continue;  // released just now
    if (is_free(file->content)) {
      stays_ = true;
      remove_dead(place_.key, path_, *file);
      continue;
    }
    const std::optional<LockOwner> owner = parse_owner(file->content);
    const Owner state = owner ? judge(*owner) : Owner::kUnknown;
    const int64_t age_ms = file_system_now_ms(place_.key, path_) - file->touched_ms;
    const bool stale = age_ms > times_.stale.count();
    const bool was_touched = waited_for_ && (waited_for_->content != file->content ||
                                             waited_for_->touched_ms != file->touched_ms);
    if (state == Owner::kUnknown && !stale && !was_touched && times_.while_waiting) {
      if (!waited_for_) {
        log_warning(
            "track",
            "{} is held by {}, which may be lost: waiting until it has not been touched for {} "
            "s, {} s more at most",
            path_,
            owner ? fmt::format("process {} on host {}", owner->pid, owner->host)
                  : "an unknown process",
            times_.stale.count() / 1000,
            (times_.stale.count() - age_ms) / 1000);
      }
      waited_for_ = file;
      return false;
    }
    if (state == Owner::kAlive || (state == Owner::kUnknown && !stale)) {
      throw_held(place_, path_, owner, state, times_, age_ms);
    }
    log_warning("track",
                "{} is taken over: {}",
                path_,
                owner ? fmt::format("process {} on host {}, which held it since {}, is dead",
                                    owner->pid,
                                    owner->host,
                                    owner->since)
                      : "it is broken and old");
    stays_ = stays_ || state == Owner::kUnknown;
    remove_dead(place_.key, path_, *file);
  }
  throw ConfigError(
      "{0}: '{1}' cannot be locked: other processes keep making and removing {2}\n"
      "  Start one run at a time there, or choose another {0}.",
      place_.key,
      place_.folder,
      path_);
}

/// @return false if there is a lock already
bool RunLock::make() {
  const std::string aside = aside_of(path_);
  create(place_.key, aside, content_);
  const bool linked = ::link(aside.c_str(), path_.c_str()) == 0;
  const int error_number = errno;
  struct stat status = {};
  // A network file system may do it and then lose the answer.
  const bool two_names = ::stat(aside.c_str(), &status) == 0 && status.st_nlink == 2;
  ::unlink(aside.c_str());
  if (linked || two_names) return true;
  if (error_number == EEXIST || error_number == ENOENT) return false;
  return create(place_.key, path_, content_);  // no links there
}

/// Says once that the folder is not the one that was locked; after an error nothing is known.
void RunLock::look_at_folder() {
  struct stat now = {};
  const bool is_there = ::stat(place_.folder.c_str(), &now) == 0;
  if (!is_there && errno != ENOENT) return;
  if (is_there && now.st_ino == folder_inode_) return;
  if (std::exchange(told_gone_, true)) return;
  log_error(
      "track",
      "{} was removed or renamed while this process writes there: its open files, such as the "
      "log, are no longer in it\n  If you renamed it, stop this process and rename it back.",
      place_.folder);
}

void RunLock::refresh() {
  look_at_folder();
  const std::optional<LockFile> file = read_lock(path_);
  if (!file) {
    try {
      create(place_.key, path_, content_);  // somebody removed it
    } catch (const Error&) {                // the disk fails: the run will tell of it
    }
    return;
  }
  if (file->content == content_) {
    ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
  } else if (!lost_.exchange(true)) {
    log_error("track",
              "{} is not this run's any more: another one works in the same folder. {}",
              path_,
              place_.when_lost);
  }
}

void RunLock::look() {
  const std::lock_guard lock(mutex_);
  if (!lost_) refresh();
  check();
}

void RunLock::check() const {
  if (!lost_) return;
  throw ConfigError(
      "{}: another process has taken '{}' over while this one did not answer (a machine that "
      "slept, "
      "a file system that was away)\n  {}",
      place_.key,
      place_.folder,
      place_.when_lost);
}

void RunLock::keep_fresh() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, times_.refresh, [this] { return ending_; })) refresh();
}

}  // namespace dalle2
