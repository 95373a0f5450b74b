// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

constexpr size_t kMostLastPictures = 4;

/// A section as part of a file name.
std::string file_name_of(std::string section) {
  std::replace(section.begin(), section.end(), '/', '_');
  return section;
}

}  // namespace

Journal::Journal(const std::vector<LogConfig>& configs,
                 const std::string& data_path,
                 std::function<void()> may_write)
    : data_path_(data_path), may_write_(std::move(may_write)), loggers_(configs, data_path) {}

void Journal::open(RunFacts facts, const std::string& run_id, std::optional<int64_t> lines) {
  const std::filesystem::path folder(data_path_);
  const std::string path = (folder / kLogFile).string();
  file_.emplace(path);
  if (file_->lines() == 0 || facts.is_copy) unnamed_run_ = run_id;
  if (lines) file_->pass_over(*lines);
  written_ = file_->written();
  facts.lines = written_;
  facts.data_path = data_path_;
  cursors_.emplace((folder / kFollowersFile).string());
  const FollowedLog log{.path = path,
                        .written = [this] { return written_.load(); },
                        .sync = [this] { file_->sync(); },
                        .check = may_write_,
                        .log_error =
                            [this](const std::string& message) {
                              const std::lock_guard lock(mutex_);
                              log_error_locked(message, /*leaves_out=*/false);
                            }};
  for (const auto& logger : loggers_.all()) {
    std::unique_ptr<JournalSink> sink = logger->make_sink(facts);
    if (sink != nullptr)
      followers_.push_back(std::make_unique<Follower>(std::move(sink), log, *cursors_));
  }
}

void Journal::follow(Deadline deadline) {
  for (const auto& follower : followers_) follower->connect_now(deadline);
  for (const auto& follower : followers_) follower->start();
}

int64_t Journal::lines() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->lines() : 0;
}

void Journal::sync() const {
  if (file_) file_->sync();
}

/// After each line.
void Journal::wrote() {
  written_ = file_->written();
  for (const auto& follower : followers_) follower->notify();
}

void Journal::log_file(const std::string& name) {
  for (const auto& follower : followers_) follower->add_file(name);
}

void Journal::begin_end(const RunEnd& end) {
  for (const auto& follower : followers_) follower->begin_end(end);
}

bool Journal::is_done() const {
  return std::all_of(followers_.begin(), followers_.end(), [](const auto& follower) {
    return follower->is_done();
  });
}

bool Journal::last_was_fault() const {
  return std::all_of(followers_.begin(), followers_.end(), [](const auto& follower) {
    return follower->is_done() || follower->last_was_fault();
  });
}

std::vector<std::string> Journal::end() {
  std::vector<std::string> left;
  for (const auto& follower : followers_) {
    if (follower->is_done()) continue;
    left.push_back(
        fmt::format("{} ({})", follower->sink().name(), counted(follower->waiting(), "row")));
  }
  std::vector<std::unique_ptr<Follower>> ended;  // wrote() knows none that is being destroyed
  {
    const std::lock_guard lock(mutex_);
    ended.swap(followers_);
  }
  return left;
}

void Journal::check_may_write() const {
  D2_CHECK(file_.has_value(), "Tracker::begin comes before anything is logged");
  may_write_();
}

void Journal::pass_over(int64_t lines) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  file_->pass_over(lines);
  wrote();
}

void Journal::log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  last_step_ = step;
  // The steps of a log rise: the line that names the run has the step of the first record.
  if (!unnamed_run_.empty())
    file_->write({{"run_id", std::exchange(unnamed_run_, "")}}, last_step_);
  file_->write(record, step);
  const ShownRecord line = shown ? *shown : shown_in_full(record);
  if (!line.empty() && loggers_.prints_records()) log_info("", "{}", record_line(line, step));
  wrote();
}

void Journal::log_images(const std::vector<LogImage>& images,
                         const std::string& section,
                         int64_t step) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  std::vector<StoredImage> stored;
  for (size_t i = 0; i < images.size(); ++i) {
    const LogImage& image = images[i];
    const std::string file = image.name.empty()
                                 ? fmt::format("{}_{}_{}.png", step, file_name_of(section), i)
                                 : image.name;
    const std::string name = fmt::format("{}/{}", kImagesFolder, file);
    try {
      write_file_atomically((std::filesystem::path(data_path_) / name).string(), image.png);
    } catch (const Error& error) {
      may_write_();  // the folder may have been moved away
      log_error_locked(fmt::format("Error storing a picture: {}", error.what()));
      continue;
    }
    stored.push_back({name, image.caption});
  }
  last_step_ = step;
  const size_t kept = std::min(stored.size(), kMostLastPictures);
  last_pictures_.assign(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(kept));
  file_->write_images(stored, section, step);
  // Differs from upstream, which says nothing: where the pictures lie.
  if (!stored.empty() && loggers_.prints_records()) {
    std::string what = stored.front().path;
    if (stored.size() > 1) what = fmt::format("{} pictures, from {}", stored.size(), what);
    log_info("", "{}", record_line({{.label = section + ":", .values = {what}}}, step));
  }
  wrote();
}

void Journal::log_error(const std::string& message, bool leaves_out) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  log_error_locked(message, leaves_out);
}

void Journal::log_error_locked(const std::string& message, bool leaves_out) {
  if (leaves_out) has_errors_.store(true);
  file_->write({{"error", message}}, last_step_);
  dalle2::log_error("track", "{}", message);
  wrote();
}

std::vector<StoredImage> Journal::last_pictures() const {
  const std::lock_guard lock(mutex_);
  return last_pictures_;
}

}  // namespace dalle2
