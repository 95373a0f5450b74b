// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"
#include "net/http_transfer.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr double kSecondsBetweenChecks = 1;
/// Of a start for all services together: to find out whether they are there, then how far they are.
constexpr std::chrono::seconds kTimeToAsk{25}, kTimeToConnect{5};
constexpr double kSilence = 20;  ///< at the end; 10 s later it is given up

}  // namespace

Tracker::Tracker(const TrackerConfig& config,
                 const FormatFields& example_placeholders,
                 bool dummy,
                 ReadFacts read_facts,
                 StartOptions options)
    : config_(config),
      dummy_(dummy),
      read_facts_(std::move(read_facts)),
      options_(std::move(options)),
      folder_(config.data_path,
              read_facts_,
              {.keep_last = config.keep_last, .keep_every = config.keep_every}),
      loggers_(config.log.values()) {
  if (config.load) {
    source_ = std::make_unique<CheckpointSource>(
        *config.load,
        config.data_path,
        [this] { return loggers_.wandb_run(); },
        /*fetches=*/!dummy_);
  }
  if (dummy_) return;
  copies_.emplace(config.save, example_placeholders, folder_);
}

Tracker::~Tracker() {
  finish({});
}

const StartPlan& Tracker::open(std::function<void()> while_lock_waits) {
  if (while_lock_waits) lock_times_.while_waiting = std::move(while_lock_waits);
  return plan_start(/*writes=*/true);
}

const StartPlan& Tracker::plan_start(bool writes) {
  if (plan_) return *plan_;
  if (dummy_) return plan_.emplace();
  if (const std::optional<std::string> why = why_not_writable(config_.data_path)) {
    throw ConfigError(
        "/tracker/data_path: '{}' cannot be written: {}\n"
        "  Choose another data_path, or make that place writable for this user.",
        config_.data_path,
        *why);
  }
  if (writes) folder_.lock(lock_times_);
  options_.auto_resume = loggers_.auto_resume();
  options_.overwrite = config_.overwrite_data_path;
  options_.load = source_.get();
  StartPlan plan{.action = folder_.decide(options_)};
  if (plan.action == StartAction::kRefuseDamaged && source_ && source_->is_remote() && writes) {
    source_->fetch();  // the run may have sent its state there
    plan.action = folder_.decide(options_);
  }
  plan.elsewhere = copies_->intact();
  if (source_ && source_->is_remote()) plan.elsewhere.push_back(source_->name());
  if (plan.action == StartAction::kRefuseDamaged)
    throw DataError("{}", nothing_intact(folder_.path(), plan.elsewhere));
  if (plan.action == StartAction::kSetAside) folder_.check_can_be_set_aside(options_);
  const bool in_place = plan.action == StartAction::kBeginInPlace;
  try {
    if (plan.resumes() || in_place) loggers_.read_auto_resume(folder_.in(kAutoResumeFile));
  } catch (const ConfigError&) {
    if (!in_place) throw;  // else any config will do, with other loggers too
  }
  const auto deadline = std::chrono::steady_clock::now() + kTimeToAsk;
  copies_->check_access(deadline);
  copies_->check_targets_are_free();
  for (const auto& [folder, key] : outside_) folder_.check_outside(folder, key);
  // Savers that do not answer leave it time to find a wrong key.
  loggers_.check(std::max(deadline, std::chrono::steady_clock::now() + kTimeToConnect));
  plan_ = std::move(plan);
  add_loaded_file(writes);
  return *plan_;
}

/// The files that this start is to try.
void Tracker::add_loaded_file(bool writes) {
  const bool loads = source_ && !source_->only_auto_resume();
  if (plan_->action == StartAction::kGoBack) {
    plan_->files = {options_.back_to};
  } else if (plan_->resumes()) {
    plan_->files = folder_.checkpoints();
    if (source_ && folder_.has_saved(source_->path())) plan_->files.push_back(source_->path());
  } else if (loads) {
    if (writes && source_->is_remote()) source_->fetch();
    if (!writes) source_->check_access();
    std::error_code ignored;
    if (fs::exists(source_->path(), ignored)) plan_->files = {source_->path()};
  }
}

void Tracker::begin(const LoadedState& loaded) {
  if (dummy_) return;
  D2_CHECK(plan_.has_value() && !file_, "Tracker::open comes first, then begin, once");
  if (plan_->action == StartAction::kSetAside) folder_.set_aside(lock_times_);
  const bool is_copy =
      folder_.take(plan_->action, plan_->files.empty() || !source_ ? "" : source_->name());
  if (is_copy) copies_->check_targets_are_free();
  for (const auto& [folder, key] : outside_) {
    folder_.check_outside(folder, key);
    folder_.take_outside(folder);
  }
  if (plan_->resumes()) go_back(loaded);
  const bool in_place = plan_->action == StartAction::kBeginInPlace;
  facts_.goes_on = (plan_->resumes() || in_place) && !is_copy;
  facts_.is_copy = is_copy;
  if (plan_->resumes()) last_step_ = loaded.position.step;  // of errors before the first record
  // What a start logged that saved nothing is passed over as a whole.
  open_log(plan_->resumes() ? loaded.log_lines : std::optional<int64_t>(0));
  // A kill after a service has heard of the run begins no second one.
  if (const std::string runs = loggers_.wandb_runs(); !runs.empty()) {
    folder_.note([&](RunRecord& record) {
      record.wandb = runs;
      record.process = {facts_.process.begin(), facts_.process.end()};
    });
  }
  if (loggers_.auto_resume()) loggers_.write_auto_resume(folder_.in(kAutoResumeFile));
  const Deadline deadline = std::chrono::steady_clock::now() + kTimeToConnect;
  for (const auto& follower : followers_) follower->connect_now(deadline);
  for (const auto& follower : followers_) follower->start();
  copies_->open(
      loggers_.wandb_run(),
      facts_.config,
      [this](const std::string& message) { log_error(message); },
      [this](const std::string& message) { note_error(message); });
  if (!loggers_.auto_resume()) return;
  if (plan_->resumes()) {
    log_info("track",
             "RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE {}.\n"
             "  For a new run choose another /tracker/data_path, or use --fresh.",
             loggers_.type_names());
  } else {
    log_info("track",
             "/tracker/log/auto_resume is true, and there is no run to resume: this is the first "
             "start");
  }
}

/// @param lines that log.jsonl had when the checkpoint that the run resumes from was saved: those that came
/// later are marked as passed over. None: it is not known
void Tracker::open_log(std::optional<int64_t> lines) {
  file_.emplace(folder_.in(kLogFile));
  if (file_->lines() == 0 || facts_.is_copy) unnamed_run_ = folder_.run_id();
  if (lines) file_->pass_over(*lines);
  facts_.first_line = folder_.record().first_line;
  facts_.data_path = config_.data_path;
  cursors_.emplace(folder_.in(kFollowersFile));
  const FollowedLog log{.file = *file_,
                        .log_error = [this](const std::string& message) { note_error(message); },
                        .check = [this] { folder_.check_token(); }};
  for (const auto& logger : loggers_.all()) {
    if (logger->begin(facts_))
      followers_.push_back(std::make_unique<Follower>(logger, log, *cursors_));
  }
}

void Tracker::go_back(const LoadedState& loaded) {
  if (dummy_) return;
  if (plan_->action == StartAction::kGoBack || file_) folder_.go_back_to(loaded.path);
  folder_.abandon_newer(loaded.position);
  if (!file_ || !loaded.log_lines) return;
  const auto lock = lock_log();
  last_step_ = loaded.position.step;
  file_->pass_over(*loaded.log_lines);
}

std::string Tracker::newest_good() const {
  if (dummy_ || !read_facts_) return "";
  for (const std::string& path : folder_.checkpoints()) {
    const std::optional<SavedFacts> facts = read_facts_(path);
    if (facts && !facts->amid_skips) return path;
  }
  return "";
}

/// For one who writes to it. @throws ConfigError another start has taken the run over
std::unique_lock<std::mutex> Tracker::lock_log() const {
  std::unique_lock lock(mutex_);
  D2_CHECK(file_.has_value(), "Tracker::begin comes before anything is logged");
  folder_.check_token();
  return lock;
}

void Tracker::log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown) {
  if (dummy_) return;
  const auto lock = lock_log();
  last_step_ = step;
  // The steps of a log rise: the line that names the run has the step of the first record.
  if (!unnamed_run_.empty())
    file_->write({{"run_id", std::exchange(unnamed_run_, "")}}, last_step_);
  file_->write(record, step);
  const ShownRecord line = shown ? *shown : shown_in_full(record);
  if (!line.empty() && loggers_.prints_records()) log_info("", "{}", record_line(line, step));
}

void Tracker::log_images(const std::vector<LogImage>& images,
                         const std::string& section,
                         int64_t step) {
  if (dummy_) return;
  const auto lock = lock_log();
  std::string place = section;  // in the names of files
  std::ranges::replace(place, '/', '_');
  std::vector<StoredImage> stored;
  for (size_t i = 0; i < images.size(); ++i) {
    const LogImage& image = images[i];
    const std::string file =
        image.name.empty() ? fmt::format("{}_{}_{}.png", step, place, i) : image.name;
    const std::string name = fmt::format("{}/{}", kImagesFolder, file);
    try {
      write_file_atomically(folder_.in(name), image.png);
    } catch (const Error& error) {
      folder_.check_token();  // the folder may have been moved away
      has_errors_ = true;
      write_error(fmt::format("Error storing a picture: {}", error.what()));
      continue;
    }
    stored.push_back({name, image.caption});
  }
  last_step_ = step;
  file_->write_images(stored, section, step);
  // Differs from upstream, which says nothing: where the pictures lie.
  if (!stored.empty() && loggers_.prints_records()) {
    std::string what = stored.front().path;
    if (stored.size() > 1) what = fmt::format("{} pictures, from {}", stored.size(), what);
    log_info("", "{}", record_line({{.label = section + ":", .values = {what}}}, step));
  }
}

void Tracker::log_error(const std::string& message) {
  if (dummy_) return;
  const auto lock = lock_log();
  has_errors_ = true;
  write_error(message);
}

/// Nothing is missing but at a service. Of any thread.
void Tracker::note_error(const std::string& message) {
  const std::lock_guard lock(mutex_);
  try {
    folder_.check_token();
  } catch (const Error&) {  // the log is another start's now
    dalle2::log_error("track", "{}", message);
    return;
  }
  write_error(message);
}

void Tracker::write_error(const std::string& message) {
  file_->write({{"error", message}}, last_step_);
  dalle2::log_error("track", "{}", message);
}

int64_t Tracker::log_lines() const {
  const std::lock_guard lock(mutex_);
  return file_ ? file_->lines() : 0;
}

void Tracker::finish(const RunEnd& end) {
  if (!file_ || std::exchange(finished_, true)) return;
  const auto all_are = [this](const auto& so) { return std::ranges::all_of(followers_, so); };
  note_progress();  // silence is counted from now on
  copies_->begin_end();
  for (const auto& follower : followers_) follower->begin_end(end);
  wait_until_sent(
      [&] { return copies_->is_done() && all_are([](const auto& one) { return one->is_done(); }); },
      [&] {
        return end.outcome != RunEnd::Outcome::kDone || seconds_without_progress() > kSilence ||
               ((copies_->is_done() || copies_->last_answer_was_fault()) &&
                all_are([](const auto& one) { return one->is_done() || one->last_was_fault(); }));
      },
      config_.upload_deadline_seconds);
  const size_t files = copies_->end();  // whose last errors wait too
  std::vector<std::string> left;
  for (const auto& follower : followers_) {
    const int64_t rows = follower->waiting();
    if (!follower->is_done() || rows > 0)
      left.push_back(fmt::format("{} ({})", follower->logger().name(), counted(rows, "row")));
  }
  followers_.clear();
  if (files > 0) {
    left.push_back(fmt::format(
        "{} in {}", counted(static_cast<int64_t>(files), "file"), folder_.in(kOutboxFolder)));
  }
  if (left.empty()) return;
  log_warning("track",
              "{} could not be sent: the next start sends what is left, or `dalle2-train sync {}`",
              fmt::join(left, ", "),
              folder_.path());
}

void Tracker::attempt(const std::string& what, const std::function<void()>& part) {
  if (dummy_) return;
  folder_.check_token();
  try {
    part();
  } catch (const Error& error) {
    log_error(fmt::format("Error {}: {}", what, error.what()));
  }
}

void Tracker::save_config(const std::string& name, const std::string& content) {
  if (dummy_) return;
  folder_.check_token();
  write_file_atomically(folder_.in(name), content);
  copies_->save_config(name, content);
}

void Tracker::save(const SaveRequest& request) {
  if (dummy_ || (!request.is_best && !request.is_latest)) return;
  const auto write = [&](const char* name, const auto& writer) {
    folder_.check_token();
    try {
      writer(folder_.in(name));
    } catch (const Error&) {  // perhaps because the folder was moved away
      folder_.check_token();
      throw;
    }
  };
  file_->sync();  // the checkpoint counts its lines
  write(kCheckpointFile, request.write_checkpoint);
  folder_.note([](RunRecord& record) { record.has_saved = true; });
  if (!request.amid_skips)
    attempt("keeping a snapshot",
            [&] { folder_.keep_snapshot(request.position, request.is_best); });
  write(kModelFile, request.write_model);
  if (request.write_lora) write(kLoraFile, request.write_lora);
  log_info("track",
           "Saved {}, {}{} in {}",
           kCheckpointFile,
           kModelFile,
           request.write_lora ? fmt::format(", {}", kLoraFile) : "",
           config_.data_path);
  copies_->save(request.is_best, request.is_latest, request.placeholders);
}

void Tracker::check() {
  if (dummy_ || (since_check_ && since_check_->seconds() < kSecondsBetweenChecks)) return;
  since_check_.emplace();
  folder_.check_token();
}

void Tracker::finish_as(const std::string& what) {
  if (dummy_ || has_errors_) return;
  folder_.note([&](RunRecord& record) { record.finished = what; });
}

}  // namespace dalle2
