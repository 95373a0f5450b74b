// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/disk_io.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
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

}  // namespace

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

}  // namespace dalle2
