// SPDX-License-Identifier: MIT
// How a tracker starts: data_path is locked, and what another run left there is set aside.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/files/writable.h"
#include "io/streams/url_source.h"
#include "tracker/run_folder/auto_resume.h"
#include "tracker/run_folder/stale_parts.h"
#include "tracker/tracker.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Where a VAE puts its results, which it does not read, and the folder of the pictures.
constexpr std::string_view kResultsPointer = "/train/results_folder",
                           kFolderPointer = "/data/folder";

/// What of data_path belongs to one run. The mark comes first: without it a start that was
/// interrupted here does not take the rest for its own.
constexpr const char* kFilesOfARun[] = {kAutoResumeFile,
                                        kCheckpointFile,
                                        kSnapshotsFolder,
                                        kAveragesFolder,
                                        kModelFile,
                                        kLoraFile,
                                        kLogFile,
                                        kImagesFolder,
                                        kResultsFolder,
                                        kTensorboardFolder,
                                        kOutboxFolder,
                                        kWandbMarkFile,
                                        kRecordFile};

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::absolute(a).lexically_normal() == fs::absolute(b).lexically_normal() ||
         fs::equivalent(a, b, error);
}

/// The targets on this machine that are the same at every save.
std::vector<std::string> fixed_targets(const std::vector<std::unique_ptr<Saver>>& savers) {
  std::vector<std::string> paths;
  for (const auto& saver : savers) {
    for (std::string& path : saver->fixed_local_targets()) paths.push_back(std::move(path));
  }
  return paths;
}

/// What exists of the path that a config names: of a pattern ("shards/{}.tar") the folder before it. Canonical; empty if
/// nothing.
fs::path existing_part(const std::string& text) {
  std::error_code ignored;
  if (text.empty() || !is_local_url(text)) return {};
  const std::string path = local_path(text);
  if (fs::exists(path, ignored)) return fs::weakly_canonical(path, ignored);
  const size_t pattern = path.find_first_of("{*?[");
  if (pattern == std::string::npos) return {};
  const fs::path folder = fs::path(path.substr(0, pattern)).parent_path();
  return !folder.empty() && fs::exists(folder, ignored) ? fs::weakly_canonical(folder, ignored)
                                                        : fs::path();
}

/// Moves a file into a folder, which is made, under the first free number from `number` on. @return where it is now
std::string moved_into(const std::string& folder,
                       const std::string& path,
                       int64_t number,
                       std::error_code& error) {
  fs::create_directories(folder, error);
  if (error) return "";
  const auto place = [&] { return fmt::format("{}/{}", folder, number); };
  while (fs::exists(place())) ++number;
  fs::rename(path, place(), error);
  if (error) {
    std::error_code ignored;
    fs::remove(folder, ignored);  // unless it holds others
  }
  return place();
}

bool is_among(const std::string& path, const std::vector<std::string>& paths) {
  return std::any_of(
      paths.begin(), paths.end(), [&](const std::string& other) { return same_file(path, other); });
}

}  // namespace

void Tracker::check_data_path() const {
  const fs::path folder(config_.data_path);
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return;
  if (!fs::is_directory(folder, ignored)) {
    throw ConfigError("/tracker/data_path: '{}' is a file; expected a folder", config_.data_path);
  }
  if (config_.overwrite_data_path) return;
  throw ConfigError(
      "/tracker/data_path: the folder {} exists{}.\n"
      "  Set /tracker/overwrite_data_path to true to resume the run in it or to add to it; that "
      "deletes nothing. Or choose another data_path for a new run.",
      config_.data_path,
      fs::exists(folder / LockPlace{}.file, ignored) ? ", and a run works in it or was killed"
                                                     : "");
}

void Tracker::check_writable() const {
  if (dummy_) return;
  check_places();
  loggers_->check();
}

void Tracker::check_places() const {
  if (const std::optional<std::string> why = why_not_writable(config_.data_path)) {
    throw ConfigError(
        "/tracker/data_path: '{}' cannot be written: {}\n"
        "  Choose another data_path, or make that place writable for this user.",
        config_.data_path,
        *why);
  }
  for (const auto& saver : savers_) saver->check_access(example_);
}

void Tracker::init(const TrackerStart& start) {
  if (dummy_) {
    auto_resumed_ = start.auto_resumed_on_main;
    return;
  }
  if (!locks_.empty()) return;
  check_places();
  prepare_data_path(start.while_lock_waits);
  read_records();
  loggers_->check();  // which know by now what they continue
  fetch_source();
  // What a copied folder lists elsewhere is the original's, which may be at work.
  if (own_files_->is_copy()) return;
  for (const std::string& part : sweep_parts_of(own_files_->paths())) {
    log_info("track", "Removed {}, left by an interrupted save", part);
  }
}

/// What an earlier start has left in data_path says of itself. It is read again after the folder is
/// locked, and logged again only if it has changed.
void Tracker::read_records() {
  const std::string path = in_data_path(kAutoResumeFile);
  std::error_code ignored;
  const bool is_read = loggers_->auto_resume() && fs::is_regular_file(path, ignored);
  const std::string text = is_read ? read_file(path) : "";
  const bool tells = std::exchange(told_of_mark_, text) != text;
  const AutoResumeMark mark = read_auto_resume(path, *loggers_, tells);
  auto_resumed_ = mark.resumes;
  marked_id_ = mark.run_id;
  own_files_.emplace(config_.data_path, mark.run_id);
}

/// What an auto-resumed run began from is fetched once, and what lies in its own folder is as new as
/// what it has sent anywhere.
void Tracker::fetch_source() {
  if (!can_recall() || !loads_from_afar()) return;
  std::error_code error;
  if (auto_resumed_ && own_files_->began_from(source_->name()) &&
      fs::exists(source_->path(), error)) {
    return;
  }
  const std::string own = in_data_path(kCheckpointFile);
  const bool is_whole = read_facts_ && fs::exists(own, error) && read_facts_(own).has_value();
  if (auto_resumed_ && is_whole && was_saved_by_this_run(own).value_or(false)) {
    log_info("track", "{} is not fetched: {} is there", source_->name(), own);
    return;
  }
  source_->fetch();
}

void Tracker::check_source() const {
  if (can_recall() && loads_from_afar()) source_->check_access();
}

/// The place of a checkpoint that a run starts from, for its record.
std::string Tracker::begun_from(const std::string& checkpoint) const {
  return loads_from_afar() && checkpoint == source_->path() ? source_->name() : checkpoint;
}

void Tracker::look_for_earlier_run() {
  std::error_code error;
  if (dummy_ || !fs::is_directory(config_.data_path, error)) return;
  read_records();
}

std::vector<std::string> Tracker::earlier_files() const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const char* name : kFilesOfARun) {
    if (fs::exists(in_data_path(name), ignored)) names.emplace_back(name);
  }
  return names;
}

void Tracker::prepare_data_path(const std::function<void()>& while_lock_waits) {
  for (const LockPlace& place : held_) {
    locks_.push_back(
        std::make_unique<RunLock>(place, LockTimes{.while_waiting = while_lock_waits}));
  }
  std::error_code ignored;
  fs::remove_all(in_data_path(kClearedFolder), ignored);  // of a start that was killed
  const std::vector<std::string> swept = sweep_stale_parts(config_.data_path);
  if (swept.empty()) return;
  std::vector<std::string> names;
  for (const std::string& path : swept) {
    names.push_back(fs::path(path).lexically_relative(config_.data_path).string());
  }
  log_info("track",
           "Removed {} of an interrupted run from {}: {}",
           counted(static_cast<int64_t>(swept.size()), "unfinished file"),
           config_.data_path,
           short_list(names));
}

void Tracker::begin_anew(const std::string& reason) {
  if (dummy_) return;
  check_undecided();
  check_renames();  // before anything is removed
  explain_start(reason);
  explain_left_out();
  const bool has_base = source_ && !source_->only_auto_resume();
  try {
    if (is_cleared_) clear_recorded();
    start_over(has_base ? source_->path() : "");
  } catch (...) {
    give_back_names();
    throw;
  }
  open_logs();
}

void Tracker::go_on(const std::string& checkpoint) {
  if (dummy_) return;
  check_undecided();
  explain_left_out();
  if (is_cleared_) {
    log_info(
        "track", "--clear-results: nothing is removed, because the run starts from {}", checkpoint);
  }
  goes_on_ = is_of_this_run(checkpoint);
  const bool was_copy = own_files_->is_copy();
  if (!goes_on_) {
    check_renames();
    start_over(checkpoint);
  } else {
    if (!loggers_->auto_resume()) remove_mark();
    if (auto_resumed_ && !own_files_->recorded()) own_files_->own_all();
    // A start of a copy that was killed has an id already, and the mark of the original still.
    const bool has_others_mark =
        !marked_id_.empty() && !own_files_->run_id().empty() && marked_id_ != own_files_->run_id();
    if (was_copy || has_others_mark) part_from_original();
    name_run(checkpoint);
  }
  if (auto_resumed_) {
    log_info("track",
             "RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE {}.\n"
             "  For a new run choose another /tracker/data_path, and other targets (/tracker/save, "
             "/tracker/load).",
             loggers_->type_names());
  }
  // A copy of a folder resumes from the original's file elsewhere, but never replaces it.
  if (!was_copy || own_files_->is_below(checkpoint)) own_files_->own(checkpoint);
  open_logs();
}

/// Of a copied folder: what waits to be sent is the original's to send, and its runs at services are the
/// original's to continue.
void Tracker::part_from_original() {
  is_copy_ = true;
  std::vector<std::string> kept;
  for (const char* name : {kOutboxFolder, kWandbMarkFile}) {
    // Not given back by take_back(): the record names this run by then, and a later start could not tell.
    const std::optional<std::string> now = set_aside(in_data_path(name));
    if (now) kept.push_back(fs::path(*now).filename().string());
  }
  log_info("track",
           "{} is a copy of a run's folder: it logs and saves as a run of its own{}",
           config_.data_path,
           kept.empty() ? ""
                        : fmt::format("; what the original had still to send is kept as {}",
                                      fmt::join(kept, ", ")));
}

/// Says what a user may not expect.
void Tracker::explain_start(const std::string& reason) const {
  std::error_code error;
  if (!reason.empty()) {
    log_info("track", "Starting from zero: {}", reason);
  } else if (auto_resumed_ && !source_) {
    log_warning("track",
                "Starting from zero: auto_resume.json marks an earlier run, but without "
                "/tracker/load no checkpoint of it is loaded");
  } else if (auto_resumed_) {
    log_warning(
        "track",
        "Starting from zero: no checkpoint of the earlier run is left (looked for {}, {}, {})",
        source_->name(),
        in_data_path(kCheckpointFile),
        in_data_path(kSnapshotsFolder));
  } else if (source_ && source_->only_auto_resume() && !source_->is_remote() &&
             fs::exists(source_->path(), error)) {
    log_warning(
        "track",
        "Starting from zero: {} exists, but is loaded only when a run resumes by auto-resume "
        "(/tracker/load/only_auto_resume), and {}",
        source_->name(),
        loggers_->auto_resume() ? config_.data_path + " has no auto_resume.json of such a run"
                                : "/tracker/log/auto_resume is false");
  }
}

/// The id of a run that resumes: as recorded or, in folders of older versions, as the checkpoint
/// says it; a new one for a run without an id and for a copy of a folder.
void Tracker::name_run(const std::string& checkpoint) {
  run_id_ = own_files_->run_id();
  if (run_id_.empty()) run_id_ = saved_by(checkpoint);
  const bool is_copy = own_files_->is_copy();
  is_new_name_ = run_id_.empty() || is_copy;
  if (is_new_name_) run_id_ = make_run_id();
  if (is_copy) own_files_->forget_elsewhere();
  if (run_id_ != own_files_->run_id()) own_files_->rename(run_id_);
}

void Tracker::explain_left_out() const {
  if (!auto_resumed_ || !source_) return;
  const auto explain = [&](const std::string& name, const std::string& by) {
    log_warning(
        "track",
        "{} was saved by another run ({}, this one is {}): it is not loaded. Give each run its "
        "own target (/tracker/save).",
        name,
        by,
        own_files_->run_id());
  };
  std::vector<ResumeFile> files = with_facts(own_files());
  for (const ResumeFile& file : take_others(files)) explain(file.path, file.facts->run_id);
  const std::string loaded = source_->path();
  if (!source_->only_auto_resume() || is_among(loaded, own_files())) return;
  if (!was_saved_by_this_run(loaded).value_or(true)) explain(source_->name(), saved_by(loaded));
}

/// Whether a checkpoint that was resumed is of the run whose log and files are in data_path.
bool Tracker::is_of_this_run(const std::string& checkpoint) const {
  if (auto_resumed_ && own_files_->began_from(begun_from(checkpoint)))
    return true;  // killed before a save
  if (is_among(checkpoint, own_files()))
    return !own_files_->is_of_another_run(checkpoint, saved_by(checkpoint));
  if (const std::optional<bool> known = was_saved_by_this_run(checkpoint)) return *known;
  if (own_files_->recorded()) return false;
  return auto_resumed_ || is_among(checkpoint, fixed_targets(savers_));
}

/// Takes the results of the earlier run out of the way; remove_cleared() removes them once the run has begun. Of a copied
/// folder the original's files, which lie elsewhere, are not its own. What the run begins with stays.
void Tracker::clear_recorded() {
  cleared_ = 0;
  for (const std::string& path : own_files_->paths()) {
    std::error_code error;
    if (!is_cleared_(path) || !fs::is_regular_file(fs::symlink_status(path, error))) continue;
    if (own_files_->is_copy() && !own_files_->is_below(path)) continue;
    if (own_files_->is_taken_over(path)) continue;
    if (source_ && same_file(path, source_->path())) continue;
    std::string now = moved_into(in_data_path(kClearedFolder), path, *cleared_, error);
    if (error == std::errc::cross_device_link) {  // results_folder is on another disk
      now = moved_into(
          (fs::path(path).parent_path() / kClearedFolder).string(), path, *cleared_, error);
    }
    if (error) throw ConfigError("--clear-results: {}: {}", path, error.message());
    renamed_.emplace_back(now, path);
    ++*cleared_;
  }
}

void Tracker::remove_cleared() {
  if (!cleared_) return;
  std::error_code ignored;
  for (const auto& [now, before] : renamed_) {
    const fs::path folder = fs::path(now).parent_path();
    if (folder.filename() != kClearedFolder) continue;
    fs::remove(now, ignored);
    fs::remove(folder, ignored);  // with the last one
  }
  log_info("track", "--clear-results: {} of the earlier run removed", counted(*cleared_, "file"));
}

std::vector<std::string> Tracker::paths_of_a_run() const {
  std::vector<std::string> paths;
  for (const char* name : kFilesOfARun) paths.push_back(in_data_path(name));
  return paths;
}

void Tracker::check_start(const std::string& checkpoint) const {
  if (own_files_ && (checkpoint.empty() || !is_of_this_run(checkpoint))) check_renames();
}

void Tracker::check_renames() const {
  std::error_code ignored;
  std::vector<std::pair<fs::path, std::string>> there;  // canonical, and the name in data_path
  for (const std::string& path : paths_of_a_run()) {
    if (!fs::exists(path, ignored)) continue;
    there.emplace_back(fs::weakly_canonical(path, ignored), fs::path(path).filename().string());
  }
  const auto config = std::find_if(metadata_.begin(), metadata_.end(), [](const auto& entry) {
    return entry.first == "config";
  });
  if (there.empty() || config == metadata_.end()) return;
  const bool has_been_run_in = is_run_record(in_data_path(kRecordFile));
  const Json all = parse_untrusted_object(config->second).flatten();
  for (const auto& [pointer, value] : all.items()) {
    if (!value.is_string() || pointer.starts_with("/tracker/") || pointer == kResultsPointer)
      continue;
    const std::string text = value.get<std::string>();
    const fs::path read = existing_part(text);
    if (read.empty()) continue;
    // Below the folder that is read, pictures are the user's unless a run has been there.
    const bool reads_below = pointer == kFolderPointer && !has_been_run_in;
    for (const auto& [path, name] : there) {
      const bool is_read =
          is_in_folder(read, path) || (reads_below && is_in_folder(path, read) &&
                                       (name == kImagesFolder || name == kResultsFolder));
      if (!is_read) continue;
      throw ConfigError(
          "/tracker/data_path {}: a run keeps {} there, and {} reads '{}'\n  Choose another data_path, "
          "for example runs/my.",
          config_.data_path,
          name,
          pointer,
          text);
    }
  }
}

/// Sets aside what an earlier run left in data_path, all under one number, and what a later
/// auto-resume would take for this run's.
void Tracker::start_over(const std::string& began_from) {
  const std::vector<std::string> paths = paths_of_a_run();
  const int number = free_number(paths);
  if (!loggers_->auto_resume()) remove_mark();
  const auto is_loaded = [&](const std::string& path) {
    return !began_from.empty() && same_file(path, began_from);
  };
  // Weights that a run begins with may be among the results: those that are in its way go one by one.
  const auto has_loaded = [&](const std::string& path) {
    return path == in_data_path(kResultsFolder) && !began_from.empty() &&
           same_file(path, fs::absolute(began_from).parent_path().string());
  };
  std::vector<std::string> moved, own;
  std::string hint;
  for (const std::string& path : paths) {
    if (is_loaded(path) || has_loaded(path)) continue;
    own.push_back(path);
    const std::optional<std::string> now = set_aside(path, number);
    if (!now) continue;
    renamed_.emplace_back(*now, path);
    moved.push_back(fs::path(*now).filename().string());
    if (path == in_data_path(kCheckpointFile)) hint = how_to_go_on(*now);
  }
  if (!moved.empty()) {
    log_warning("track",
                "{} holds files of an earlier run; they are kept as {}{}",
                config_.data_path,
                fmt::join(moved, ", "),
                hint);
  }
  run_id_ = make_run_id();
  is_new_name_ = true;
  own_files_->start_over(run_id_, begun_from(began_from), own);
  if (!loggers_->auto_resume() || !source_) return;
  const std::string loaded = source_->path();
  if (source_->only_auto_resume() && !is_loaded(loaded) &&
      is_among(loaded, fixed_targets(savers_))) {
    claim(loaded, /*checkpoint=*/true);
  }
}

void Tracker::remove_mark() {
  const std::optional<std::string> now = set_aside(in_data_path(kAutoResumeFile));
  if (!now) return;
  renamed_.emplace_back(*now, in_data_path(kAutoResumeFile));
  log_info("track",
           "Removing auto_resume.json because auto_resume is not enabled in the config: it is now "
           "{}",
           *now);
}

/// Told once: it is the same for every file.
std::string Tracker::how_to_go_on(const std::string& checkpoint) {
  if (std::exchange(told_how_to_go_on_, true)) return "";
  return fmt::format(
      "\n  To resume from it instead, stop this run and set /tracker/load to {{\"load_from\": "
      "\"local\", \"file_path\": \"{}\"}}.",
      checkpoint);
}

/// Before a file is written: what another run left there goes out of the way.
void Tracker::claim(const std::string& path, bool checkpoint, bool must_write) {
  const std::string by = saved_by(path);
  const std::lock_guard lock(*files_mutex_);
  const std::optional<std::string> now = own_files_->claim(path, by, must_write);
  if (!now) return;
  if (!log_file_) renamed_.emplace_back(*now, path);
  log_warning("track",
              "{} is not this run's; it is kept as {}{}",
              path,
              *now,
              checkpoint ? how_to_go_on(*now) : "");
}

/// A logger may still be refused: the folder is then as it was.
void Tracker::open_logs() {
  try {
    begin_logs();
  } catch (...) {
    take_back();
    throw;
  }
  remove_cleared();
  renamed_.clear();
}

/// Removes what this start has made of a run that begins anew, and gives what was there its names again.
void Tracker::take_back() {
  log_file_.reset();
  uploads_.reset();
  std::error_code ignored;  // the fault before it is the one to report
  for (const char* name :
       {kRecordFile, kLogFile, kWandbMarkFile, kAutoResumeFile, kTensorboardFolder}) {
    if (!goes_on_) fs::remove_all(in_data_path(name), ignored);
  }
  give_back_names();
}

void Tracker::give_back_names() {
  std::error_code ignored;
  // Backwards: a kill between two leaves no mark without its record.
  for (auto it = renamed_.rbegin(); it != renamed_.rend(); ++it) {
    fs::rename(it->first, it->second, ignored);
    const fs::path folder = fs::path(it->first).parent_path();
    if (folder.filename() == kClearedFolder) fs::remove(folder, ignored);  // with the last one
  }
  renamed_.clear();
}

void Tracker::begin_logs() {
  log_file_.emplace(in_data_path(kLogFile));
  facts_.goes_on = goes_on_ && !is_copy_;
  facts_.is_copy = is_copy_;
  facts_.records = log_file_->records();
  facts_.data_path = config_.data_path;
  loggers_->init(facts_);
  start_uploads();
  for (const auto& saver : savers_) saver->init(uploads_.get(), loggers_->wandb_run());
  if (uploads_) {
    uploads_->begin();
    if (const auto others = uploads_->unserved(); !others.empty()) {
      log_warning(
          "track",
          "{} for {} wait in {}, of an earlier start with another saver: `dalle2-train sync {}` "
          "sends them",
          counted(static_cast<int64_t>(others.size()), "file"),
          others.front().to,
          in_data_path(kOutboxFolder),
          config_.data_path);
    }
  }
  if (loggers_->auto_resume()) {
    write_auto_resume(in_data_path(kAutoResumeFile), *loggers_, run_id_);
  }
}

void Tracker::start_uploads() {
  const bool sends = std::any_of(
      savers_.begin(), savers_.end(), [](const auto& saver) { return saver->is_remote(); });
  const std::string folder = in_data_path(kOutboxFolder);
  if (sends || Outbox::has_entries(folder)) uploads_ = std::make_unique<Uploads>(folder);
}

void Tracker::check_undecided() const {
  D2_CHECK(own_files_.has_value() && !log_file_.has_value(),
           "Tracker::init comes first, then go_on or begin_anew, once");
}

void Tracker::check_started() const {
  D2_CHECK(log_file_.has_value(),
           "Tracker::init, then go_on or begin_anew, come before anything is logged or saved");
}

}  // namespace dalle2
