// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "config/kinds.h"
#include "io/files/atomic_file.h"
#include "io/files/walk_folder.h"
#include "io/streams/url_source.h"
#include "net/digest.h"
#include "tracker/log/log_file.h"
#include "tracker/places/remote_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Folders in which a kill may leave a *.part.
constexpr const char* kFoldersWithParts[] = {
    "", kSnapshotsFolder, kAveragesFolder, kImagesFolder, kResultsFolder};

bool is_nothing(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return true;
  return fs::is_directory(path, error) && fs::is_empty(path, error);
}

/// With the first number behind it that is free.
std::string with_free_number(const std::string& path) {
  std::error_code ignored;
  int number = 1;
  while (fs::exists(fs::symlink_status(fmt::format("{}.{}", path, number), ignored))) ++number;
  return fmt::format("{}.{}", path, number);
}

}  // namespace

std::string nothing_intact(const std::string& data_path,
                           const std::vector<std::string>& elsewhere) {
  return fmt::format(
      "{0}: the run has saved, and none of its checkpoints is intact: `dalle2-train fsck {0}` says "
      "more\n  {1} To begin a new run, use --fresh or choose another /tracker/data_path.",
      data_path,
      elsewhere.empty()
          ? "No fixed target of a saver on this machine has a copy."
          : fmt::format("Copy one of these to {0}/checkpoint.pth and start again: {1}.",
                        data_path,
                        fmt::join(elsewhere, ", ")));
}

RunFolder::RunFolder(std::string path, ReadFacts read_facts, const SnapshotRules& rules)
    : path_(std::move(path)),
      real_(canonical_folder(path_).string()),
      read_facts_(std::move(read_facts)),
      rules_(rules) {}

std::string RunFolder::in(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

std::string RunFolder::snapshot(const SnapshotPosition& position) const {
  return in(fmt::format("{}/{}", kSnapshotsFolder, snapshot_name(position)));
}

void RunFolder::lock(const LockTimes& times) {
  lock_ = std::make_unique<RunLock>(real_, times);
}

/// Those of kOwnNames, and configs, that are there.
std::vector<std::string> RunFolder::own_names() const {
  std::vector<std::string> names;
  for (const char* name : kOwnNames) {
    if (!is_nothing(in(name))) names.emplace_back(name);
  }
  for (const std::string& kind : known_root_keys()) {
    if (!is_nothing(in(kind + "_config.json"))) names.push_back(kind + "_config.json");
  }
  return names;
}

/// Whether the folder holds anything that a start does not leave there.
bool RunFolder::holds_others() const {
  bool others = false;
  walk_folder(path_, Below::kNothing, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    others = others || !(name == kLockFile || name == kLoadedFile || name.ends_with(".part"));
  });
  return others;
}

FolderState RunFolder::look() {
  try {
    found_ = read_run_record(path_);
  } catch (const DataError& error) {
    fault_ = error.what();
    return FolderState::kUnreadable;
  }
  planned_id_ = found_ ? found_->id : "";
  if (found_ && found_->has_saved) return FolderState::kSaved;
  if (!found_ && own_names().empty()) return FolderState::kEmpty;
  // A kill may have come between the first checkpoint and the note in run.json.
  const bool has_checkpoint = facts_in(in(kCheckpointFile)).has_value();
  if (found_) return has_checkpoint ? FolderState::kSaved : FolderState::kUnsaved;
  return has_checkpoint ? FolderState::kCheckpoint : FolderState::kFiles;
}

/// What a file says of the run that saved it.
std::optional<SavedFacts> RunFolder::facts_in(const std::string& path) const {
  return read_facts_ ? read_facts_(path) : std::nullopt;
}

/// Of the run that this start is, or is going to be.
const std::string& RunFolder::id_now() const {
  return record_.id.empty() ? planned_id_ : record_.id;
}

bool RunFolder::is_inside(const std::string& path) const {
  std::error_code ignored;
  return is_in_folder(fs::weakly_canonical(path, ignored), real_);
}

bool RunFolder::has_saved(const std::string& path) const {
  const std::optional<SavedFacts> facts = facts_in(path);
  return facts && !id_now().empty() && facts->run_id == id_now();
}

bool RunFolder::owns(const std::string& path) const {
  // What an earlier start left in the folder is the run's, and goes with it.
  std::error_code ignored;
  const auto is_name_of = [&](const char* name) { return fs::equivalent(path, in(name), ignored); };
  // A damaged checkpoint is damaged under all of its names.
  const bool is_folder_own = (found_ && found_->was_empty) || adopts_;
  return (is_inside(path) && is_folder_own) || has_saved(path) || wrote_copy(path) ||
         (found_ && !planned_id_.empty() &&
          (is_name_of(kCheckpointFile) || is_name_of(kModelFile)));
}

std::vector<std::string> RunFolder::checkpoints() const {
  std::vector<std::string> found;
  std::vector<std::string> paths = {in(kCheckpointFile)};
  for (const SnapshotPosition& position : kept_snapshots(in(kSnapshotsFolder)))
    paths.push_back(snapshot(position));
  paths.push_back(in(kBestSnapshot));
  std::error_code error;
  for (std::string& path : paths) {
    // The newest snapshot is the file of checkpoint.pth under another name.
    const bool is_new = std::ranges::none_of(
        found, [&](const std::string& other) { return fs::equivalent(other, path, error); });
    if (is_new && fs::exists(path, error)) found.push_back(std::move(path));
  }
  return found;
}

StartFacts RunFolder::facts_of(const StartOptions& options) {
  StartFacts facts{.folder = look(),
                   .auto_resume = options.auto_resume,
                   .overwrite = options.overwrite,
                   .fresh = options.fresh,
                   .back_to = !options.back_to.empty()};
  if (!found_) return facts;
  facts.restarted_job = is_restarted_job() && !found_->job.empty() && found_->job == this_job();
  std::error_code ignored;
  const CheckpointSource* const load = options.load;
  if (load != nullptr && !load->only_auto_resume()) {
    // What was fetched lies in the folder too, and is no file of it.
    facts.load_is_inside = !load->is_remote() && is_inside(load->path());
    facts.load_is_other =
        !facts.load_is_inside && load->name() != found_->began_from && !has_saved(load->path());
  }
  const auto is_intact = [&](const std::string& path) {
    return !read_facts_ || read_facts_(path).has_value();
  };
  const std::vector<std::string> own = checkpoints();
  if (facts.back_to && !facts.restarted_job) {
    facts.has_intact = std::ranges::any_of(own, [&](const std::string& path) {
      return fs::equivalent(path, options.back_to, ignored) && is_intact(path);
    });
  } else {
    facts.has_intact =
        std::ranges::any_of(own, is_intact) || (load != nullptr && has_saved(load->path()));
  }
  return facts;
}

StartAction RunFolder::decide(const StartOptions& options) {
  const StartAction action = dalle2::decide(facts_of(options));
  const bool is_refused = action >= StartAction::kRefuseFiles;
  if (is_refused && action != StartAction::kRefuseDamaged) refuse(action, options);
  if (action == StartAction::kSetAside) planned_id_.clear();
  adopts_ = action == StartAction::kAdopt;
  if (adopts_) planned_id_ = read_facts_(in(kCheckpointFile))->run_id;
  return action;
}

void RunFolder::refuse(StartAction action, const StartOptions& options) {
  switch (action) {
    case StartAction::kRefuseFiles:
      throw ConfigError(
          "/tracker/data_path: {} has no run.json, and holds what a run would write: {}\n  Choose "
          "another data_path, or move these away.{}",
          path_,
          fmt::join(own_names(), ", "),
          options.auto_resume ? ""
                              : " To resume an earlier run by its checkpoint.pth, set "
                                "/tracker/log/auto_resume to true.");
    case StartAction::kRefuseExists:
      throw ConfigError(
          "/tracker/data_path: the folder {} exists and holds a run\n  To resume it, set "
          "/tracker/log/auto_resume to true. To begin a new run, choose another data_path, or use "
          "--fresh (or set /tracker/overwrite_data_path): the whole folder is renamed then.",
          path_);
    case StartAction::kRefuseLoad:
      throw ConfigError(
          "/tracker/load: {} is neither a file of the run in {} nor what that run began from{}\n  To "
          "resume the run, leave /tracker/load out. To begin a new run from that file, choose "
          "another data_path or use --fresh.",
          options.load->name(),
          path_,
          found_->began_from.empty() ? " (it began from zero)"
                                     : fmt::format(" ({})", found_->began_from));
    case StartAction::kRefuseLoadInside:
      throw ConfigError(
          "/tracker/load: {} lies in data_path {}, which a new run would set aside\n  To resume the "
          "run, set /tracker/log/auto_resume to true. To begin a new one from that file, choose "
          "another data_path.",
          options.load->name(),
          path_);
    case StartAction::kRefuseBack:
      throw ConfigError(
          "--back-to {}: expected an intact snapshot of the run in {}{}\n  `dalle2-train fsck {}` "
          "lists them.",
          options.back_to,
          path_,
          options.fresh ? ", and not --fresh" : "",
          path_);
    default:
      throw DataError("{}", fault_);  // kRefuseUnreadable
  }
}

void RunFolder::refuse_to_set_aside(const std::string& why) const {
  throw ConfigError(
      "/tracker/data_path: {0} holds a run and cannot be set aside as a whole: {1}\n  Choose "
      "another data_path, or move the run's files to any free place yourself: mkdir {2} && mv {3}/* "
      "{2}/",
      path_,
      why,
      with_free_number(real_),
      real_);
}

void RunFolder::check_can_be_set_aside(const StartOptions& options) const {
  const auto refuse_if = [&](bool is_so, const std::string& why) {
    if (is_so) refuse_to_set_aside(why);
  };
  std::error_code ignored;
  refuse_if(!found_->was_empty, "it held other files when its run began");
  refuse_if(is_in_folder(fs::current_path(ignored), real_), "the working directory lies in it");
  refuse_if(!options.config_path.empty() && is_inside(options.config_path),
            fmt::format("the config {} lies in it", options.config_path));
  for (const std::string& data : options.data)
    refuse_if(!data.empty() && is_inside(local_path(data)),
              fmt::format("/data names {} in it", data));
  walk_folder(real_, Below::kReadable, [&](const fs::directory_entry& entry) {
    refuse_if(entry.path().filename() == kRecordFile && entry.path().parent_path() != real_,
              fmt::format("{} is another run", entry.path().parent_path().string()));
  });
}

void RunFolder::set_aside(const LockTimes& times) {
  const std::string aside = with_free_number(real_);
  try {
    move_path(real_, aside);
  } catch (const Error& fault) {
    refuse_to_set_aside(fault.what());
  }
  const std::unique_ptr<RunLock> old = std::exchange(lock_, nullptr);
  lock(times);
  found_.reset();
  log_info("track", "{} is set aside as {}: a new run begins", path_, aside);
}

bool RunFolder::take(StartAction action, const std::string& began_from) {
  const bool resumes = action == StartAction::kResume || action == StartAction::kGoBack;
  if (found_) record_ = *found_;
  if (found_ || fs::exists(in(kRecordFile))) check_token();  // nobody has come since decide()
  if (!found_) {
    record_ = RunRecord();
    record_.id = make_run_id();
    record_.began = utc_now();
    record_.home = real_;
    record_.was_empty = !holds_others();
  }
  const std::string home = record_.home;
  if (action == StartAction::kAdopt) {
    if (!planned_id_.empty()) record_.id = planned_id_;
    record_.has_saved = true;
  } else if (!resumes) {
    record_.began_from = began_from;
  }
  if (resumes) record_.has_saved = true;
  if (action != StartAction::kResume) record_.finished.clear();
  record_.token = make_run_id();
  record_.job = this_job();
  std::error_code ignored;
  record_.started_in = fs::current_path(ignored).string();
  sweep_parts();
  write_run_record(path_, record_);
  if (home == real_) return false;
  // A moved folder has left nothing behind; an alias of this one has the token of now.
  std::optional<RunRecord> there;
  try {
    there = read_run_record(home);
  } catch (const DataError&) {  // a start in that folder reports it
  }
  const bool is_copy = there && there->id == record_.id && there->token != record_.token;
  if (is_copy) {
    // What waits to be sent is the original's to send, and its runs at services are its own.
    for (const char* name : {kOutboxFolder, kFollowersFile, kAutoResumeFile}) {
      if (!is_nothing(in(name))) abandon(in(name));
    }
    record_.id = make_run_id();
    record_.wandb.clear();
    record_.copies.clear();
    bool torn = false;
    record_.first_line = count_lines(in(kLogFile), torn);
  }
  record_.home = real_;
  write_run_record(path_, record_);
  if (!is_copy) return false;
  log_info("track", "{} is a copy of {}: it logs and saves as a run of its own", path_, home);
  return true;
}

void RunFolder::check_token() const {
  const std::string path = in(kRecordFile);
  std::error_code error;
  const bool is_there = fs::exists(path, error);
  if (error) return;  // cannot be asked now; a write that fails says why
  try {
    if (is_there && read_file(path).find(record_.token) != std::string::npos &&
        !record_.token.empty())
      return;
  } catch (const Error&) {
    if (fs::exists(path, error) || error) return;
  }
  throw ConfigError(
      "{}: another start has taken this run over{}; this one ends, and writes nothing more\n  Let "
      "that one continue.",
      path_,
      is_there ? "" : " or moved it away (run.json is gone)");
}

void RunFolder::go_back_to(const std::string& file) {
  check_token();
  const std::string checkpoint = in(kCheckpointFile);
  std::error_code error;
  if (fs::equivalent(file, checkpoint, error)) return;
  // No snapshot may hold it: saved amid skipped updates, or with keep_last 0.
  if (fs::hard_link_count(checkpoint, error) == 1 && !error)
    link_new_file(checkpoint, free_abandoned(checkpoint));
  link_file_atomically(file, checkpoint);
}

/// A name in abandoned/ that is free.
std::string RunFolder::free_abandoned(const std::string& path) const {
  const std::string base =
      in(fmt::format("{}/{}", kAbandonedFolder, fs::path(path).filename().string()));
  return fs::exists(base) ? with_free_number(base) : base;
}

void RunFolder::abandon(const std::string& path) const {
  const std::string free = free_abandoned(path);
  move_path(path, free);
  log_info("track", "{} is kept as {}", path, free);
}

void RunFolder::abandon_newer(const SnapshotPosition& position) {
  check_token();
  for (const SnapshotPosition& kept : kept_snapshots(in(kSnapshotsFolder))) {
    if (kept > position) abandon(snapshot(kept));
  }
  const std::string best = in(kBestSnapshot);
  std::error_code error;
  const std::optional<SavedFacts> facts = fs::exists(best, error) ? facts_in(best) : std::nullopt;
  if (facts && facts->samples_seen > position.samples_seen) abandon(best);
  if (!fs::exists(in(kAveragesFolder), error)) return;
  const std::string last = averages_name(position.step);
  for (const std::string& name : names_in_folder(in(kAveragesFolder))) {
    if (name > last && name.ends_with(".pth"))
      abandon((fs::path(in(kAveragesFolder)) / name).string());
  }
}

void RunFolder::keep_snapshot(const SnapshotPosition& position, bool is_best) {
  check_token();
  if (!rules_.enabled()) return;
  link_file_atomically(in(kCheckpointFile), snapshot(position));
  if (is_best) link_file_atomically(in(kCheckpointFile), in(kBestSnapshot));
  for (const SnapshotPosition& old :
       snapshots_to_remove(kept_snapshots(in(kSnapshotsFolder)), position, rules_))
    remove_file(snapshot(old));
}

void RunFolder::note(const std::function<void(RunRecord& record)>& change) {
  const std::lock_guard lock(mutex_);
  const RunRecord before = record_;
  change(record_);
  if (record_ == before) return;
  check_token();
  write_run_record(path_, record_);
}

void RunFolder::note_copy(const std::string& path, const std::string& content) {
  note([&](RunRecord& record) {
    record.copies[fs::absolute(path).lexically_normal().string()] = to_hex(sha256(content));
  });
}

bool RunFolder::wrote_copy(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const bool is_planned = record_.id.empty() && found_ && planned_id_ == found_->id;
  const RunRecord& record = is_planned ? *found_ : record_;
  const auto known = record.copies.find(fs::absolute(path).lexically_normal().string());
  return known != record.copies.end() && known->second == to_hex(sha256(read_file(path)));
}

void RunFolder::check_outside(const std::string& folder, const char* key) const {
  if (is_in_folder(canonical_folder(folder), real_) || is_nothing(folder)) return;
  const std::optional<RunRecord> there = read_run_record(folder);
  if (there && there->id == id_now()) return;
  throw ConfigError("{}: {} {}\n  Choose another folder, or move what is there away: mv {} {}.1",
                    key,
                    folder,
                    there ? "belongs to another run (" + there->home + ")"
                          : "is not empty, and no run has begun there",
                    folder,
                    fs::path(folder).lexically_normal().string());
}

void RunFolder::take_outside(const std::string& folder) const {
  if (!is_in_folder(canonical_folder(folder), real_)) write_run_record(folder, record_);
}

/// What a killed start of this run was writing.
void RunFolder::sweep_parts() const {
  if (!found_ || !found_->was_empty) return;
  std::vector<std::string> stale;
  for (const char* name : kFoldersWithParts) {
    walk_folder(in(name), Below::kNothing, [&](const fs::directory_entry& entry) {
      std::error_code error;
      const bool is_file = fs::is_regular_file(entry.symlink_status(error));
      if (is_file && entry.path().extension() == ".part") stale.push_back(entry.path().string());
    });
  }
  for (const std::string& path : stale) remove_file(path);
  if (!stale.empty())
    log_info("track",
             "Removed {} of an interrupted start from {}",
             counted(static_cast<int64_t>(stale.size()), "unfinished file"),
             path_);
}

}  // namespace dalle2
