// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "tracker/places/model_card.h"
#include "tracker/public_config.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// Entries of a checkpoint that hold the state itself: metadata must not take their place.
constexpr std::array<std::string_view, 6> kStateKeys = {
    "scaler", "optimizer", "model", "version", "step", "steps"};

bool is_state_key(const std::string& key) {
  return std::find(kStateKeys.begin(), kStateKeys.end(), key) != kStateKeys.end();
}

/// A section as part of a file name.
std::string file_name_of(std::string section) {
  std::replace(section.begin(), section.end(), '/', '_');
  return section;
}

/// Whether a file is there and none of `known`: the newest snapshot and a copy on the same disk are the
/// file of checkpoint.pth under other names.
bool is_another(const std::string& path, const std::vector<std::string>& known) {
  std::error_code error;
  const bool repeated = std::any_of(known.begin(), known.end(), [&](const std::string& other) {
    return fs::equivalent(other, path, error);
  });
  return fs::exists(path, error) && !repeated;
}

/// The files of `paths` that exist, each once.
std::vector<std::string> existing_once(const std::vector<std::string>& paths) {
  std::vector<std::string> existing;
  for (const std::string& path : paths) {
    if (is_another(path, existing)) existing.push_back(path);
  }
  return existing;
}

}  // namespace

Tracker::Tracker(const TrackerConfig& config,
                 const FormatFields& example_placeholders,
                 bool dummy,
                 ReadFacts read_facts)
    : config_(config),
      dummy_(dummy),
      read_facts_(std::move(read_facts)),
      example_(example_placeholders),
      held_({LockPlace{config.data_path}}),
      loggers_(std::make_unique<Loggers>(config.log.values(), config.data_path)),
      snapshots_(in_data_path(kSnapshotsFolder),
                 {.keep_last = config.keep_last, .keep_every = config.keep_every}) {
  if (config.load) {
    // The tracker may be moved, what its pointer leads to stays.
    source_ = make_checkpoint_source(*config.load, config.data_path, [loggers = loggers_.get()] {
      return loggers->wandb_run();
    });
  }
  if (source_) source_->check();
  if (dummy_) return;
  if (source_) source_->check_login();
  check_data_path();
  for (const SaveConfig& save : config.save) {
    savers_.push_back(make_saver(save));
    savers_.back()->check_targets(example_placeholders, config.data_path);
  }
  if (savers_.empty()) {
    throw ConfigError(
        "/tracker/save: `savers` must be set: a run without one saves nothing, e.g. {{\"save_to\": "
        "\"local\", \"save_latest_to\": \"latest.pth\"}}");
  }
}

Tracker::Tracker(Tracker&&) noexcept = default;

/// A folder within another one goes before it.
Tracker::~Tracker() {
  if (locks_.empty()) return;
  finish({});
  uploads_.reset();
  // A start that was refused leaves nothing behind.
  std::error_code ignored;
  const bool is_refused = locks_.front()->made_folder() && !log_file_;
  if (is_refused && loads_from_afar()) fs::remove(source_->path(), ignored);
  while (!locks_.empty()) locks_.pop_back();
}

void Tracker::log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown) {
  if (dummy_) return;
  check_started();
  log_upload_errors();
  const std::lock_guard lock(*log_mutex_);
  last_step_ = step;
  name_run_in_log();
  // What a logger has, log.jsonl has: a kill between the two leaves nothing that a resume cannot find.
  const LogMoment now = moment();
  log_file_->write(record, step);
  loggers_->log(record, shown ? *shown : shown_in_full(record), now);
}

void Tracker::log_images(const std::vector<LogImage>& images,
                         const std::string& section,
                         int64_t step) {
  if (dummy_) return;
  check_started();
  const std::lock_guard lock(*log_mutex_);
  name_run_in_log();
  std::vector<StoredImage> stored;
  for (size_t i = 0; i < images.size(); ++i) {
    const LogImage& image = images[i];
    const std::string file = image.name.empty()
                                 ? fmt::format("{}_{}_{}.png", step, file_name_of(section), i)
                                 : image.name;
    const std::string name = fmt::format("{}/{}", kImagesFolder, file);
    try {
      write_file_atomically(in_data_path(name), image.png);
    } catch (const Error& error) {
      const std::string message = fmt::format("Error storing a picture: {}", error.what());
      left_something_out_->store(true);
      log_error_locked(message);
      continue;
    }
    stored.push_back({name, image.caption, std::make_shared<const std::string>(image.png)});
  }
  last_step_ = step;
  constexpr size_t kMostOnCard = 4;
  last_pictures_.assign(
      stored.begin(),
      stored.begin() + static_cast<std::ptrdiff_t>(std::min(stored.size(), kMostOnCard)));
  for (StoredImage& image : last_pictures_) image.png.reset();
  const LogMoment now = moment();
  log_file_->write_images(stored, section, step);
  loggers_->log_images(stored, section, now);
}

void Tracker::log_error(const std::string& message) {
  if (dummy_) return;
  check_started();
  const std::lock_guard lock(*log_mutex_);
  name_run_in_log();
  left_something_out_->store(true);
  log_error_locked(message);
}

/// Under log_mutex_.
void Tracker::log_error_locked(const std::string& message) {
  const LogMoment now = moment();
  log_file_->write({{"error", message}}, last_step_);
  loggers_->log_error(message, now);
}

LogMoment Tracker::moment() const {
  return {.step = last_step_, .number = log_file_->records(), .unix_seconds = wall_time_seconds()};
}

void Tracker::finish(const RunEnd& end) {
  if (dummy_ || !log_file_ || std::exchange(finished_, true)) return;
  const bool is_done = end.outcome == RunEnd::Outcome::kDone;
  tell_failed_copies();
  finish_uploads(is_done ? config_.upload_deadline_seconds : Uploads::kSecondsAfterStop);
  const bool has_sent = std::any_of(
      savers_.begin(), savers_.end(), [](const auto& saver) { return saver->is_remote(); });
  // After a stop the uploads had their part of it.
  const double left = kSecondsToStop - (has_sent ? Uploads::kSecondsAfterStop : 0);
  loggers_->finish(end, is_done ? kSecondsToFinish : left);
}

void Tracker::store(const std::string& path,
                    const std::function<void(const std::string& path)>& write) {
  if (dummy_) return;
  check_started();
  check_lock();
  try {
    std::error_code ignored;  // the writing says what is wrong
    fs::create_directories(fs::path(path).parent_path(), ignored);
    claim(path, /*checkpoint=*/false);
    write(path);
  } catch (const Error& error) {
    log_error(fmt::format("Error storing {}: {}", path, error.what()));
  }
}

/// Before the first record under a new id: the steps of a log rise.
void Tracker::name_run_in_log() {
  if (std::exchange(is_new_name_, false)) log_file_->write({{"run_id", run_id_}}, last_step_);
}

void Tracker::save_config(const std::string& name, const std::string& content) {
  if (dummy_) return;
  check_started();
  const std::string own = in_data_path(name);
  std::error_code error;
  const bool is_there = fs::is_regular_file(own, error) && read_file(own) == content;
  if (is_there) {  // of a start that was killed before its first save, for example
    const std::lock_guard lock(*files_mutex_);
    own_files_->claim(own, own_files_->run_id());
  } else {
    claim(own, /*checkpoint=*/false);
  }
  write_file_atomically(own, content);
  loggers_->log_file(name, content);
  for (const auto& saver : savers_) {
    if (!saver->targets().save_meta_to) continue;
    const std::string target = (fs::path(*saver->targets().save_meta_to) / name).string();
    try {
      save_as(*saver, {own, "config"}, target);
    } catch (const std::exception& fault) {
      log_error(fmt::format("Error saving {}: {}", name, fault.what()));
    }
  }
}

void Tracker::save_as(Saver& saver, const FileToSave& file, const std::string& target) {
  saver.save_file(file, target, [this](const std::string& path, bool is_checkpoint) {
    claim(path, is_checkpoint);
  });
}

void Tracker::add_save_metadata(const std::string& key, const std::string& json) {
  for (auto& [known, value] : metadata_) {
    if (known == key) {
      value = json;
      return;
    }
  }
  metadata_.emplace_back(key, json);
}

SaveMetadata Tracker::checkpoint_metadata() const {
  SaveMetadata result;
  for (const auto& entry : metadata_) {
    if (!is_state_key(entry.first)) result.push_back(entry);
  }
  return result;
}

SaveMetadata Tracker::model_metadata() const {
  SaveMetadata result = {{"version", fmt::format("\"{}\"", kCheckpointLayoutVersion)}};
  for (const auto& entry : metadata_) {
    if (entry.first != "version" && entry.first != "model") result.push_back(entry);
  }
  return result;
}

bool Tracker::can_recall() const {
  return source_ != nullptr && (!source_->only_auto_resume() || auto_resumed_);
}

std::vector<std::string> Tracker::recall_candidates() const {
  if (!can_recall()) {
    throw ConfigError("Tried to recall, but no loader was set or auto-resume was not performed.");
  }
  const std::string loaded = source_->path();
  if (!auto_resumed_) return existing_once({loaded});
  const ResumeFile source{loaded, facts_of(loaded)};
  const std::optional<bool> is_own =
      was_saved_by_this_run(loaded, source.facts.value_or(SavedFacts{}).run_id);
  std::vector<std::string> known = existing_once(own_files());
  std::vector<ResumeFile> files = with_facts(known);
  const std::vector<ResumeFile> replaced = take_others(files);
  if (is_own.value_or(false) && is_another(loaded, known)) {
    known.push_back(loaded);
    files.push_back(source);
  }
  for (const std::string& path : recorded_checkpoints()) {
    if (!is_another(path, known)) continue;
    ResumeFile file{path, facts_of(path)};
    if (!file.facts || file.facts->run_id != own_files_->run_id()) continue;
    known.push_back(path);
    files.push_back(std::move(file));
  }
  // Another run has renamed this one's file: it may have been killed before it put its own there.
  const bool has_id = own_files_ && !own_files_->run_id().empty();
  if (has_id && (!replaced.empty() || resume_order(files, ResumeFor::kStart).empty())) {
    for (ResumeFile& file : with_facts(numbered_checkpoints())) {
      if (file.facts && file.facts->run_id == own_files_->run_id())
        files.push_back(std::move(file));
    }
  }
  std::vector<std::string> own = resume_order(files, ResumeFor::kStart);
  const bool is_base = own_files_ && own_files_->began_from(source_->name());
  if (!replaced.empty() && own.empty() &&
      (is_base || source_->only_auto_resume() || !is_another(loaded, known))) {
    throw ConfigError(
        "{}: {} was saved by another run ({}, this one is {}), and this run's own checkpoints are gone\n"
        "  To continue from a checkpoint, name it in /tracker/load (load_from \"local\", file_path) and "
        "choose another /tracker/data_path. Give each run its own targets (/tracker/save).",
        config_.data_path,
        replaced.front().path,
        replaced.front().facts->run_id,
        own_files_->run_id());
  }
  if (!is_own.value_or(false)) {
    if (is_base && !own.empty()) {  // the base stays a last resort
      own.push_back(loaded);
    } else if (!source_->only_auto_resume() &&
               is_another(loaded, known)) {  // asked for by name: another run begins from it
      own.insert(own.begin(), loaded);
    } else if (!is_own) {
      own.push_back(loaded);
    }
  }
  return existing_once(own);
}

std::vector<std::string> Tracker::own_checkpoints() const {
  if (!goes_on_ && !saved_->load()) return {};
  std::vector<ResumeFile> files = with_facts(existing_once(own_files()));
  take_others(files);
  return resume_order(files, ResumeFor::kRollBack);
}

/// Where this run keeps its checkpoints; what lies there is its own.
std::vector<std::string> Tracker::own_files() const {
  std::vector<std::string> paths = {in_data_path(kCheckpointFile)};
  for (std::string& path : snapshots_.newest_first()) paths.push_back(std::move(path));
  return paths;
}

/// What this run has stored for its savers' targets and could resume from. Another run may have replaced it since.
std::vector<std::string> Tracker::recorded_checkpoints() const {
  std::vector<std::string> paths;
  if (!own_files_ || own_files_->run_id().empty()) return paths;
  for (std::string& path : own_files_->paths()) {
    const std::string ending = fs::path(path).extension().string();
    if (ending != ".pth" && ending != ".pt") continue;
    if (own_files_->is_below(path) && fs::path(path).filename() == kModelFile) continue;
    paths.push_back(std::move(path));
  }
  return paths;
}

std::vector<ResumeFile> Tracker::with_facts(const std::vector<std::string>& paths) const {
  std::vector<ResumeFile> files;
  for (const std::string& path : paths)
    files.push_back({path, read_facts_ ? read_facts_(path) : std::nullopt});
  return files;
}

/// Takes out what savers of other runs have written into this run's folder. What the run began from is none of it.
std::vector<ResumeFile> Tracker::take_others(std::vector<ResumeFile>& files) const {
  const std::lock_guard lock(*files_mutex_);
  if (!own_files_ || !own_files_->recorded()) return {};
  const auto others = std::stable_partition(files.begin(), files.end(), [&](const auto& file) {
    return !file.facts || !own_files_->is_of_another_run(file.path, file.facts->run_id) ||
           own_files_->began_from(file.path);
  });
  std::vector<ResumeFile> taken(std::make_move_iterator(others),
                                std::make_move_iterator(files.end()));
  files.erase(others, files.end());
  return taken;
}

/// checkpoint.1.pth and so on, as far as they are there.
std::vector<std::string> Tracker::numbered_checkpoints() const {
  const std::string path = in_data_path(kCheckpointFile);
  std::vector<std::string> found;
  const int end = free_number({path});
  for (int number = 1; number < end; ++number) found.push_back(numbered_path(path, number));
  return found;
}

std::optional<SavedFacts> Tracker::facts_of(const std::string& path) const {
  std::error_code error;
  if (!read_facts_ || !fs::is_regular_file(path, error)) return std::nullopt;
  return read_facts_(path);
}

/// The id of the run that saved a file; empty if the file names none. What lies in data_path, which
/// is locked, is this run's.
std::string Tracker::saved_by(const std::string& path) const {
  return facts_of(path).value_or(SavedFacts{}).run_id;
}

std::optional<bool> Tracker::was_saved_by_this_run(const std::string& path) const {
  return was_saved_by_this_run(path, saved_by(path));
}

/// @param by what the file says. None if it cannot be known: the file, or the run, is of an earlier
/// version
std::optional<bool> Tracker::was_saved_by_this_run(const std::string& path,
                                                   const std::string& by) const {
  const std::string& own = own_files_ ? own_files_->run_id() : run_id_;
  if (!by.empty() && !own.empty()) return by == own;
  if (!own_files_) return std::nullopt;
  const bool counts_all = auto_resumed_ && !own_files_->recorded();
  return counts_all || own_files_->contains(path) ? std::optional(true) : std::nullopt;
}

std::string Tracker::finished_as() const {
  return goes_on_ && own_files_ ? own_files_->finished_as() : "";
}

void Tracker::finish_as(const std::string& what) {
  if (dummy_ || left_something_out_->load()) return;
  check_lock();
  const std::lock_guard lock(*files_mutex_);
  own_files_->finish_as(what);
}

void Tracker::check_lock() const {
  for (const auto& lock : locks_) lock->check();
}

std::string Tracker::in_data_path(const std::string& name) const {
  return (fs::path(config_.data_path) / name).string();
}

void Tracker::save(const SaveRequest& request) {
  if (dummy_ || (!request.is_best && !request.is_latest)) return;
  check_started();
  for (const auto& lock : locks_) lock->look();
  for (const char* name : {kCheckpointFile, kModelFile, kLoraFile}) {
    if (name != std::string_view(kLoraFile) || request.write_lora) {
      claim(in_data_path(name), name == std::string_view(kCheckpointFile), /*must_write=*/true);
    }
  }
  if (request.amid_skips) keep_last_good();
  log_upload_errors();
  request.write_checkpoint(in_data_path(kCheckpointFile));
  saved_->store(true);
  keep_snapshot(request);
  request.write_model(in_data_path(kModelFile));
  if (request.write_lora) request.write_lora(in_data_path(kLoraFile));
  log_info("track",
           "Saved {}, {}{} in {}",
           kCheckpointFile,
           kModelFile,
           request.write_lora ? fmt::format(", {}", kLoraFile) : "",
           config_.data_path);
  for (const auto& saver : savers_) {
    const SaveTargets& targets = saver->targets();
    if (request.is_latest && targets.save_latest_to)
      save_with(*saver, *targets.save_latest_to, request);
    if (request.is_best && targets.save_best_to) save_with(*saver, *targets.save_best_to, request);
  }
  if (++saves_ > 1) send_cards();
}

/// Not with the first save, which may come before there are pictures.
void Tracker::send_cards() {
  if (!uploads_ || std::exchange(sent_cards_, true)) return;
  CardFacts facts;
  for (const auto& [key, json] : metadata_) {
    if (key == "config") facts.config = public_config(json);
  }
  {
    const std::lock_guard lock(*log_mutex_);
    for (const StoredImage& image : last_pictures_) {
      facts.pictures.push_back({in_data_path(image.path), image.caption});
    }
  }
  for (const auto& saver : savers_) {
    try {
      saver->send_card(facts, in_data_path(fmt::format("{}/{}", kOutboxFolder, kCardFile)));
    } catch (const std::exception& error) {
      log_error(fmt::format("Error sending the model card: {}", error.what()));
    }
  }
}

/// The checkpoint so far stays under a second name, unless it was itself saved amid skips: then an
/// earlier save has kept the one before.
void Tracker::keep_last_good() {
  const std::string path = in_data_path(kCheckpointFile);
  std::error_code error;
  if (!saved_->load() && !goes_on_) return;
  if (!fs::exists(path, error) || !read_facts_) return;
  const std::optional<SavedFacts> facts = read_facts_(path);
  if (facts && !facts->amid_skips) snapshots_.keep_last_good(path);
}

void Tracker::keep_snapshot(const SaveRequest& request) {
  try {
    if (request.went_back) {
      snapshots_.remove_after(request.position, [&](const std::string& path) {
        const std::optional<SavedFacts> facts = read_facts_ ? read_facts_(path) : std::nullopt;
        return facts && facts->samples_seen > request.position.samples_seen;
      });
    }
    if (request.amid_skips) return;
    snapshots_.keep(in_data_path(kCheckpointFile), request.position, request.is_best);
    snapshots_.remove_last_good();
  } catch (const Error& error) {
    log_error(fmt::format("Error keeping a snapshot: {}", error.what()));
  }
}

void Tracker::save_with(Saver& saver,
                        const std::string& target_template,
                        const SaveRequest& request) {
  const SaveType type = saver.targets().save_type;
  const std::string source = in_data_path(own_file(type));
  const auto find_failed = [&] {
    return std::find_if(failed_copies_.begin(), failed_copies_.end(), [&](const FailedCopies& of) {
      return of.saver == &saver && of.target_template == target_template;
    });
  };
  try {
    save_as(saver,
            {source, save_type_name(type)},
            python_format(target_template, request.placeholders));
    if (const auto known = find_failed(); known != failed_copies_.end()) known->last_failed = false;
  } catch (const std::exception& error) {
    auto failed = find_failed();
    if (failed == failed_copies_.end()) {
      failed = failed_copies_.insert(failed, {&saver, target_template});
    }
    ++failed->count;
    failed->last_failed = true;
    log_error(fmt::format("Error saving checkpoint: {}", error.what()));
  }
}

/// The single errors may be far up in the log.
void Tracker::tell_failed_copies() const {
  for (const FailedCopies& failed : failed_copies_) {
    const SaveTargets& targets = failed.saver->targets();
    const bool is_state = targets.save_type == SaveType::checkpoint &&
                          targets.save_latest_to == failed.target_template;
    const std::string newest =
        is_state ? fmt::format(": the newest checkpoint is {}", in_data_path(kCheckpointFile)) : "";
    log_warning("track",
                "{} to '{}' failed{}",
                counted(failed.count, "save"),
                public_text(failed.target_template),
                failed.last_failed ? ", the last one too" + newest : "; the last one succeeded");
  }
}

/// A service that cannot be reached costs its own files only.
void Tracker::log_upload_errors() {
  if (!uploads_) return;
  for (const std::string& error : uploads_->take_errors()) log_error(error);
}

void Tracker::finish_uploads() {
  finish_uploads(config_.upload_deadline_seconds);
}

void Tracker::finish_uploads(double seconds) {
  if (!uploads_) return;
  if (saves_ > 0) send_cards();
  const size_t left = uploads_->finish(std::min(seconds, config_.upload_deadline_seconds));
  log_upload_errors();
  if (left > 0) {
    log_warning("track",
                "{} could not be sent and {} in {}: the next start sends what is left, or "
                "`dalle2-train sync {}`",
                counted(static_cast<int64_t>(left), "file"),
                left == 1 ? "waits" : "wait",
                in_data_path(kOutboxFolder),
                config_.data_path);
  }
  uploads_.reset();
}

}  // namespace dalle2
