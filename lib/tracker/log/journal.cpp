// SPDX-License-Identifier: MIT
#include "tracker/log/journal.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "tracker/run_folder/run_files.h"

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
  file_.emplace((std::filesystem::path(data_path_) / kLogFile).string());
  if (file_->records() == 0 || facts.is_copy) unnamed_run_ = run_id;
  if (lines) file_->pass_over(*lines);
  facts.records = file_->records();
  facts.data_path = data_path_;
  loggers_.init(facts);
}

int64_t Journal::lines() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->lines() : 0;
}

void Journal::check_may_write() const {
  D2_CHECK(file_.has_value(), "Tracker::begin comes before anything is logged");
  may_write_();
}

void Journal::pass_over(int64_t lines) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  file_->pass_over(lines);
}

void Journal::log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  last_step_ = step;
  // The steps of a log rise: the line that names the run has the step of the first record.
  if (!unnamed_run_.empty())
    file_->write({{"run_id", std::exchange(unnamed_run_, "")}}, last_step_);
  // What a logger has, log.jsonl has: a kill between the two leaves nothing that a resume cannot find.
  const LogMoment now = moment();
  file_->write(record, step);
  loggers_.log(record, shown ? *shown : shown_in_full(record), now);
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
    stored.push_back({name, image.caption, std::make_shared<const std::string>(image.png)});
  }
  last_step_ = step;
  const size_t kept = std::min(stored.size(), kMostLastPictures);
  last_pictures_.assign(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(kept));
  for (StoredImage& image : last_pictures_) image.png.reset();
  const LogMoment now = moment();
  file_->write_images(stored, section, step);
  loggers_.log_images(stored, section, now);
}

void Journal::log_error(const std::string& message, bool leaves_out) {
  const std::lock_guard lock(mutex_);
  check_may_write();
  log_error_locked(message, leaves_out);
}

void Journal::log_error_locked(const std::string& message, bool leaves_out) {
  if (leaves_out) has_errors_.store(true);
  const LogMoment now = moment();
  file_->write({{"error", message}}, last_step_);
  loggers_.log_error(message, now);
}

std::vector<StoredImage> Journal::last_pictures() const {
  const std::lock_guard lock(mutex_);
  return last_pictures_;
}

LogMoment Journal::moment() const {
  return {.step = last_step_, .number = file_->records(), .unix_seconds = wall_time_seconds()};
}

}  // namespace dalle2
