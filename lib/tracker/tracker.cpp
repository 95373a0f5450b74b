// SPDX-License-Identifier: MIT
#include "tracker/tracker.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "io/files/atomic_file.h"
#include "io/files/writable.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr double kSecondsBetweenChecks = 1;
/// Of a start for all services together: to find out whether they are there, then how far they are.
constexpr std::chrono::seconds kTimeToAsk{25}, kTimeToConnect{5};

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
      journal_(config.log.values(), config.data_path, [this] { folder_.check_token(); }) {
  if (config.load) {
    source_ = std::make_unique<CheckpointSource>(
        *config.load,
        config.data_path,
        [this] { return journal_.loggers().wandb_run(); },
        /*fetches=*/!dummy_);
  }
  if (dummy_) return;
  std::error_code ignored;
  if (fs::exists(config.data_path, ignored) && !fs::is_directory(config.data_path, ignored))
    throw ConfigError("/tracker/data_path: '{}' is a file; expected a folder", config.data_path);
  copies_.emplace(config.save, example_placeholders, folder_);
}

Tracker::~Tracker() {
  if (!dummy_) finish({});
}

StartWishes Tracker::wishes() const {
  StartWishes wishes{.auto_resume = journal_.loggers().auto_resume(),
                     .overwrite = config_.overwrite_data_path};
  if (!source_) return wishes;
  wishes.load_path = source_->path();
  wishes.load_name = source_->is_remote()
                         ? source_->name()
                         : fs::absolute(source_->path()).lexically_normal().string();
  wishes.load_is_remote = source_->is_remote();
  wishes.only_auto_resume = source_->only_auto_resume();
  return wishes;
}

const StartPlan& Tracker::open(std::function<void()> while_lock_waits) {
  if (while_lock_waits) lock_times_.while_waiting = std::move(while_lock_waits);
  return plan_start(/*writes=*/true);
}

const StartPlan& Tracker::look() {
  return plan_start(/*writes=*/false);
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
  StartPlan plan{.action = folder_.decide(wishes(), options_)};
  if (plan.action == StartAction::kRefuseDamaged && source_ && source_->is_remote() && writes) {
    source_->fetch();  // the run may have sent its state there
    plan.action = folder_.decide(wishes(), options_);
  }
  plan.elsewhere = copies_->intact();
  if (source_ && source_->is_remote()) plan.elsewhere.push_back(source_->name());
  if (plan.action == StartAction::kRefuseDamaged)
    throw DataError("{}", nothing_intact(folder_.path(), plan.elsewhere));
  if (plan.action == StartAction::kSetAside)
    folder_.check_can_be_set_aside(facts_.config, options_);
  const bool in_place = plan.action == StartAction::kBeginInPlace;
  try {
    if (plan.resumes() || in_place)
      journal_.loggers().read_auto_resume(folder_.in(kAutoResumeFile));
  } catch (const ConfigError&) {
    if (!in_place) throw;  // else any config will do, with other loggers too
  }
  const auto deadline = std::chrono::steady_clock::now() + kTimeToAsk;
  copies_->check_access(deadline);
  copies_->check_targets_are_free();
  for (const auto& [folder, key] : outside_) folder_.check_outside(folder, key);
  // Savers that do not answer leave it time to find a wrong key.
  journal_.loggers().check(std::max(deadline, std::chrono::steady_clock::now() + kTimeToConnect));
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
  D2_CHECK(plan_.has_value() && !journal_.is_open(), "Tracker::open comes first, then begin, once");
  if (plan_->action == StartAction::kSetAside) folder_.set_aside(lock_times_);
  const bool is_copy = folder_.take(plan_->action, plan_->files.empty() ? "" : wishes().load_name);
  if (is_copy) copies_->check_targets_are_free();
  for (const auto& [folder, key] : outside_) {
    folder_.check_outside(folder, key);
    folder_.take_outside(folder);
  }
  if (plan_->resumes()) go_back(loaded);
  const bool in_place = plan_->action == StartAction::kBeginInPlace;
  facts_.goes_on = (plan_->resumes() || in_place) && !is_copy;
  facts_.is_copy = is_copy;
  // What a start logged that saved nothing is passed over as a whole.
  journal_.open(
      facts_, folder_.run_id(), plan_->resumes() ? loaded.log_lines : std::optional<int64_t>(0));
  const Loggers& loggers = journal_.loggers();
  // A kill after a service has heard of the run begins no second one.
  if (const std::string runs = loggers.wandb_runs(); !runs.empty()) {
    folder_.note([&](RunRecord& record) {
      record.wandb = runs;
      record.process = {facts_.process.begin(), facts_.process.end()};
    });
  }
  if (loggers.auto_resume()) loggers.write_auto_resume(folder_.in(kAutoResumeFile));
  journal_.follow(std::chrono::steady_clock::now() + kTimeToConnect);
  copies_->open(loggers.wandb_run(), [this](const std::string& message, bool leaves_out) {
    journal_.log_error(message, leaves_out);
  });
  if (!loggers.auto_resume()) return;
  if (plan_->resumes()) {
    log_info("track",
             "RUN HAS BEEN AUTO-RESUMED WITH THE LOGGER TYPE {}.\n"
             "  For a new run choose another /tracker/data_path, or use --fresh.",
             loggers.type_names());
  } else {
    log_info("track",
             "/tracker/log/auto_resume is true, and there is no run to resume: this is the first "
             "start");
  }
}

void Tracker::go_back(const LoadedState& loaded) {
  if (dummy_) return;
  if (plan_->action == StartAction::kGoBack || journal_.is_open()) folder_.go_back_to(loaded.path);
  folder_.abandon_newer(loaded.position);
  if (journal_.is_open() && loaded.log_lines) journal_.pass_over(*loaded.log_lines);
}

std::string Tracker::newest_good() const {
  if (dummy_ || !read_facts_) return "";
  for (const std::string& path : folder_.checkpoints()) {
    const std::optional<SavedFacts> facts = read_facts_(path);
    if (facts && !facts->amid_skips) return path;
  }
  return "";
}

void Tracker::log(const LogRecord& record, int64_t step, const std::optional<ShownRecord>& shown) {
  if (dummy_) return;
  copies_->log_upload_errors();
  journal_.log(record, step, shown);
}

void Tracker::log_images(const std::vector<LogImage>& images,
                         const std::string& section,
                         int64_t step) {
  if (!dummy_) journal_.log_images(images, section, step);
}

void Tracker::log_error(const std::string& message) {
  if (!dummy_) journal_.log_error(message);
}

void Tracker::finish(const RunEnd& end) {
  if (dummy_ || !journal_.is_open() || std::exchange(finished_, true)) return;
  copies_->begin_end();
  journal_.begin_end(end);
  wait_until_sent([this] { return copies_->is_done() && journal_.is_done(); },
                  [&] {
                    return end.outcome != RunEnd::Outcome::kDone ||
                           ((copies_->is_done() || copies_->last_answer_was_fault()) &&
                            journal_.last_was_fault());
                  },
                  config_.upload_deadline_seconds);
  try {
    copies_->end();
  } catch (const ConfigError& taken_over) {
    dalle2::log_error("track", "{}", taken_over.what());
  }
  const std::vector<std::string> left = journal_.end();
  if (left.empty()) return;
  log_warning("track",
              "{} could not be sent: the next start sends what is left, or `dalle2-train sync {}`",
              fmt::join(left, ", "),
              folder_.path());
}

void Tracker::store(const std::string& path,
                    const std::function<void(const std::string& path)>& write) {
  if (dummy_) return;
  folder_.check_token();
  try {
    write(path);
  } catch (const Error& error) {
    folder_.check_token();
    journal_.log_error(fmt::format("Error storing {}: {}", path, error.what()));
  }
}

void Tracker::save_config(const std::string& name, const std::string& content) {
  if (dummy_) return;
  folder_.check_token();
  write_file_atomically(folder_.in(name), content);
  journal_.log_file(name);
  copies_->save_config(name, content);
}

void Tracker::save(const SaveRequest& request) {
  if (dummy_ || (!request.is_best && !request.is_latest)) return;
  copies_->log_upload_errors();
  const auto write = [&](const char* name, const auto& writer) {
    folder_.check_token();
    try {
      writer(folder_.in(name));
    } catch (const Error&) {  // perhaps because the folder was moved away
      folder_.check_token();
      throw;
    }
  };
  journal_.sync();  // the checkpoint counts its lines
  write(kCheckpointFile, request.write_checkpoint);
  folder_.note([](RunRecord& record) { record.has_saved = true; });
  if (!request.amid_skips) {
    try {
      folder_.keep_snapshot(request.position, request.is_best);
    } catch (const Error& error) {
      journal_.log_error(fmt::format("Error keeping a snapshot: {}", error.what()));
    }
  }
  write(kModelFile, request.write_model);
  if (request.write_lora) write(kLoraFile, request.write_lora);
  log_info("track",
           "Saved {}, {}{} in {}",
           kCheckpointFile,
           kModelFile,
           request.write_lora ? fmt::format(", {}", kLoraFile) : "",
           config_.data_path);
  copies_->save(request.is_best, request.is_latest, request.placeholders);
  // Not with the first save, which may come before there are pictures.
  if (++saves_ > 1) send_cards();
}

void Tracker::check() {
  if (dummy_ || (since_check_ && since_check_->seconds() < kSecondsBetweenChecks)) return;
  since_check_.emplace();
  folder_.check_token();
}

void Tracker::send_cards() {
  if (dummy_ || saves_ == 0) return;
  copies_->send_cards(facts_.config, journal_.last_pictures());
}

void Tracker::finish_as(const std::string& what) {
  if (dummy_ || journal_.has_errors()) return;
  folder_.note([&](RunRecord& record) { record.finished = what; });
}

}  // namespace dalle2
