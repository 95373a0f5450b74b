// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_logger.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "tracker/log/log_file.h"
#include "tracker/run_folder/run_files.h"
#include "tracker/wandb/wandb_folder.h"
#include "tracker/wandb/wandb_stream.h"

namespace dalle2 {
namespace {

constexpr auto kStatsEvery = std::chrono::seconds(15);
constexpr double kLongestStart = 15;  ///< seconds for which a service that is away delays a start
/// Of auto_resume.json, ours: what is added to the numbers of records to get the service's steps.
constexpr const char* kFirstStep = "first_step";
constexpr int kAttempts = 12;  ///< of a call: the service may be away for minutes

std::string json_of(const LogValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_line(*text);
  if (const auto* whole = std::get_if<int64_t>(&value)) return std::to_string(*whole);
  const double number = std::get<double>(value);
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  return Json(number).dump();
}

/// Eight letters and digits, as the service's own client makes them.
std::string make_wandb_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[device() % kLetters.size()];
  return id;
}

WandbItems items_of(const std::string& config, const RunFacts& facts) {
  WandbItems items;
  const Json object = parse_untrusted_object(config);
  for (const auto& [key, value] : object.items()) items.emplace_back(key, json_line(value));
  items.insert(items.end(), facts.process.begin(), facts.process.end());
  return items;
}

/// The page of a run; that of the service itself is not at the address of its API.
std::string page_of(const std::string& base_url, const WandbRunPath& path) {
  const std::string site = base_url == "https://api.wandb.ai" ? "https://wandb.ai" : base_url;
  return fmt::format("{}/{}", public_url(site), path.page());
}

/// The service refuses such a name, and an offline run would show it only when it is sent.
void check_name(const char* what, const std::string& name, const char* forbidden) {
  const size_t at = name.find_first_of(forbidden);
  if (at == std::string::npos) return;
  throw ConfigError(
      "/tracker/log: {} is \"{}\": Weights & Biases allows no '{}' in it", what, name, name[at]);
}

/// A refusal that does not pass by waiting.
bool is_refusal(const HttpStatusError& error) {
  return error.status() < 500 && !is_worth_retrying(error.status());
}

/// The file of a picture; null if it is not there any more, or is not one that the run has stored.
std::shared_ptr<const std::string> read_picture(const std::string& data_path,
                                                const std::string& path) {
  const std::optional<std::string> file = stored_picture(data_path, path);
  std::error_code error;
  if (!file || !std::filesystem::is_regular_file(*file, error)) return nullptr;
  try {
    return std::make_shared<const std::string>(read_file(*file));
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace

WandbLogger::WandbLogger(const WandbLogConfig& config)
    : Logger(config.auto_resume),
      config_(config),
      entity_(config.wandb_entity.value_or("")),
      project_(config.wandb_project.value_or("")) {}

WandbLogger::~WandbLogger() = default;

HttpCallOptions WandbLogger::options(bool at_start) const {
  HttpCallOptions options;
  if (at_start) {
    options.attempts = 3;
    options.stall_seconds = std::min(options.stall_seconds, kLongestStart / 4);
    return options;
  }
  options.attempts = kAttempts;
  options.ends_at_stop = false;  // what is left is sent after a stop, until the deadline
  options.cancelled = [this] { return std::chrono::steady_clock::now() >= deadline_.load(); };
  return options;
}

void WandbLogger::check() {
  access_ = find_wandb_access();
  check_name("the id of the run (wandb_run_id, WANDB_RUN_ID)", wanted_id(), ":;,#?/'\\");
  check_name("wandb_project", project_, "/\\#?%:");
  check_name("wandb_entity", entity_, "/\\ #?%:");
  if (access_->mode != WandbMode::kOnline) return;
  try {
    const WandbApi api(*access_, options(/*at_start=*/true));
    api.viewer();
    look_at_run(api);
  } catch (const HttpStatusError& error) {
    if (is_refusal(error)) throw HttpStatusError(error.status(), "/tracker/log: {}", error.what());
    unreachable_ = error.what();
  } catch (const NetworkError& error) {
    unreachable_ = error.what();
  }
}

/// The id of the config or the environment; empty: a new one.
std::string WandbLogger::wanted_id() const {
  return config_.wandb_run_id.value_or(access_->run_id);
}

/// @throws ConfigError it must exist and does not
WandbRunState WandbLogger::state_of_run(const WandbApi& api,
                                        const WandbRunPath& path,
                                        bool must_exist) const {
  const std::optional<WandbRunState> known = api.find_run(path);
  if (known || !must_exist) return known.value_or(WandbRunState{});
  throw ConfigError(
      "/tracker/log/wandb_run_id: there is no run {} to continue\n  Give the id of one, or leave out "
      "\"resume\" for a new run.",
      path.text());
}

/// Whether the login sees the project, and the run that is to be continued there: what is asked before
/// anything is written. Which run a start continues may change with its checkpoint.
void WandbLogger::look_at_run(const WandbApi& api) {
  if (new_id_.empty()) new_id_ = make_wandb_id();
  const std::string named = resumed_id_.empty() ? wanted_id() : resumed_id_;
  const bool must_exist = config_.resume && resumed_id_.empty() && !named.empty();
  state_of_run(api, {entity_, project_, named.empty() ? new_id_ : named}, must_exist);
}

WandbRun WandbLogger::new_run(const RunFacts& facts) {
  WandbRun run;
  goes_on_ = facts.goes_on && !resumed_id_.empty();
  std::string id = goes_on_ ? resumed_id_ : wanted_id();
  if (facts.is_copy && id == resumed_id_ && !config_.resume && !id.empty()) {
    id.clear();
    log_info(
        "track",
        "The Weights & Biases run {} is that of the folder this one is a copy of: a new run begins",
        resumed_id_);
  }
  if (id.empty()) id = new_id_.empty() ? make_wandb_id() : new_id_;
  run.resumed = goes_on_ || config_.resume;
  run.info = {.path = {.entity = entity_, .project = project_, .run_id = id},
              .name = config_.wandb_run_name.value_or(access_->name),
              .notes = access_->notes,
              .group = access_->group,
              .job_type = access_->job_type,
              .host = host_name(),
              .tags = access_->tags};
  run.config = items_of(facts.config, facts);
  run.info.config = wandb_config(run.config, {});
  run.start_unix_seconds = wall_time_seconds();
  return run;
}

void WandbLogger::init(const RunFacts& facts) {
  if (!access_) check();
  if (!facts.data_path.empty()) mark_.emplace(facts.data_path + "/" + kWandbMarkFile);
  if (access_->mode == WandbMode::kDisabled) {
    if (mark_) mark_->remove();  // what this start logs is not to be sent by a later one
    return log_info("track", "Nothing is logged to Weights & Biases: {}", access_->mode_reason);
  }
  run_ = new_run(facts);
  run_.first_record = facts.records;
  std::optional<WandbProgress> marked;
  if (facts.goes_on && mark_) marked = mark_->read(run_.info.path.run_id);
  if (marked) run_.first_record = std::min(marked->records, facts.records);
  set_first_step();
  if (marked) keep_steps_rising(*marked, facts.records);
  if (access_->mode == WandbMode::kOffline) {
    go_offline(access_->mode_reason);
  } else if (!unreachable_.empty()) {
    go_offline(unreachable_);
  } else if (const auto folder = run_.resumed
                                     ? folder_to_sync(access_->folder, run_.info.path.run_id)
                                     : std::nullopt) {
    go_offline(fmt::format(
        "earlier rows of the run are still in {}, and the service drops rows that come after later "
        "ones. Sync all its folders, in this order, before a start that is to log online",
        *folder));
  } else {
    go_online(/*must_exist=*/!goes_on_, facts.records);
  }
  next_record_ = run_.first_record;
  if (next_record_ < facts.records) missing_ = facts;
  write_mark();
  if (access_->console) console_.emplace();
  sink_->file({.name = "wandb-metadata.json",
               .content = system_metadata(run_.start_unix_seconds, stats_.gpus())});
  sink_->stats({stats_.now(), run_.start_unix_seconds});
  stats_at_ = std::chrono::steady_clock::now();
}

/// A run that continues by its id alone has no log here that says how far it is: the seconds since 1970
/// are beyond every step of a run that logs less than a record a second on average.
void WandbLogger::set_first_step() {
  if (goes_on_) return;  // auto_resume.json says it
  const auto seconds = static_cast<int64_t>(run_.start_unix_seconds);
  step_shift_ = run_.resumed ? seconds - run_.first_record : 0;
}

/// The log may have lost records that the run has: it was edited, or a full disk took no more of them. The
/// steps of the next ones are beyond theirs.
void WandbLogger::keep_steps_rising(const WandbProgress& marked, int64_t records) {
  if (!goes_on_) return;
  next_step_ = marked.next_step.value_or(marked.records + step_shift_);
  step_shift_ = std::max(step_shift_, next_step_ - records);
}

/// The mark may be older than what the service has of the log that this run continues.
void WandbLogger::skip_what_the_service_has(const WandbRunState& state, int64_t records) {
  if (!goes_on_) return;
  run_.first_record = std::clamp(state.last_step + 1 - step_shift_, run_.first_record, records);
}

/// Before the first record of this start, on the thread that sends: the start waits for none of it.
void WandbLogger::catch_up() {
  if (!missing_ || !sink_) return;
  const RunFacts facts = *std::exchange(missing_, std::nullopt);
  try {
    add_missing(facts);
  } catch (const Error& error) {
    die(error);
  }
}

/// What log.jsonl has and the run has not: an earlier start was killed before it was sent. When it was
/// logged is not known any more: the last of it when the log was last written.
void WandbLogger::add_missing(const RunFacts& facts) {
  const std::string path = facts.data_path + "/" + kLogFile;
  struct stat status {};
  LogMoment moment{.unix_seconds = run_.start_unix_seconds};
  if (::stat(path.c_str(), &status) == 0) {
    moment.unix_seconds = static_cast<double>(status.st_mtim.tv_sec) +
                          1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  }
  log_info("track",
           "Weights & Biases: adding {} of {} that an earlier start had not sent",
           counted(facts.records - next_record_, "record"),
           path);
  for_each_record(path, next_record_, [&](int64_t number, const Json& record) {
    if (number >= facts.records || record.contains("run_id")) return;
    moment.step = record["step"].get<int64_t>();
    moment.number = number;
    add_logged(record, moment, facts.data_path);
    do_or_go_offline([this] { sink_->flush(summary_); });
    write_mark();
  });
  next_record_ = facts.records;
  write_mark();
  if (lost_pictures_ == 0) return;
  log_warning("track",
              "Weights & Biases: {} of these records are not sent: {} has no such file",
              counted(std::exchange(lost_pictures_, 0), "picture"),
              facts.data_path);
}

/// A line of log.jsonl, as log() and the like were given it. Its null was a NaN or an infinity.
void WandbLogger::add_logged(const Json& record,
                             const LogMoment& moment,
                             const std::string& data_path) {
  WandbItems row;
  for (const auto& [name, value] : record.items()) {
    if (name == kWandbAxis) continue;
    if (!value.is_array()) {
      row.emplace_back(name, value.is_null() ? "NaN" : json_line(value));
      continue;
    }
    std::vector<StoredImage> images;
    for (const LoggedPicture& picture : logged_pictures(value)) {
      const auto png = read_picture(data_path, picture.path);
      if (png) {
        images.push_back({picture.path, picture.caption, png});
      } else {
        ++lost_pictures_;
      }
    }
    if (!images.empty()) add_pictures(images, name, moment);
  }
  if (!row.empty()) add_row(std::move(row), moment);
}

/// The records before the first that is not safe.
void WandbLogger::write_mark() {
  if (!mark_ || !sink_) return;
  const bool waits = stream_ != nullptr && !stream_->pending().rows.empty();
  const int64_t first = waits ? stream_->pending().rows.front().step - step_shift_ : next_record_;
  next_step_ = std::max(next_step_, next_record_ + step_shift_);
  mark_->write(run_.info.path.run_id, {first, next_step_});
}

void WandbLogger::go_online(bool must_exist, int64_t records) {
  api_.emplace(*access_, options(/*at_start=*/true));
  WandbRunState state;
  try {
    if (run_.resumed) {
      state = state_of_run(*api_, run_.info.path, must_exist);
      skip_what_the_service_has(state, records);
    }
    run_.info.path = api_->upsert(run_.info);
  } catch (const HttpStatusError& error) {
    if (is_refusal(error)) throw HttpStatusError(error.status(), "/tracker/log: {}", error.what());
    return go_offline(error.what());
  } catch (const NetworkError& error) {
    return go_offline(error.what());
  }
  api_->options() = options(/*at_start=*/false);
  entity_ = run_.info.path.entity;
  project_ = run_.info.path.project;
  const int64_t next = state.last_step + 1 - run_.first_record;
  step_shift_ = std::max(next, goes_on_ ? step_shift_ : 0);
  runtime_before_ = state.runtime_seconds;
  auto stream = std::make_unique<WandbStream>(*api_, run_, state);
  stream_ = stream.get();
  sink_ = std::move(stream);
  log_info("track", "Logging to Weights & Biases: {}", page_of(access_->base_url, run_.info.path));
}

/// Takes along what has not arrived, all of it or nothing: a disk that is full now may leave no folder
/// that keeps later starts from sending.
void WandbLogger::go_offline(const std::string& reason) {
  const std::unique_ptr<WandbSink> before = std::move(sink_);
  const WandbStream* const stream = std::exchange(stream_, nullptr);
  WandbRun rest = run_;
  if (stream != nullptr) {
    rest.resumed = true;
    rest.start_unix_seconds = wall_time_seconds();
  }
  std::unique_ptr<WandbFolder> folder;
  try {
    folder = std::make_unique<WandbFolder>(access_->folder, rest);
    if (stream != nullptr) take_along(stream->pending(), *folder);
  } catch (const Error& error) {
    if (folder) folder->remove();
    if (stream == nullptr) throw;
    die(error);
  }
  const std::string path = folder->path();
  sink_ = std::move(folder);
  const std::string text = fmt::format(
      "Weights & Biases: {} goes into {}: {}\n"
      "  Upload it with `wandb sync {}`.",
      stream == nullptr ? "the run" : "the rest of the run",
      path,
      reason,
      path);
  log_line(
      access_->mode == WandbMode::kOnline ? LogLevel::kWarning : LogLevel::kInfo, "track", text);
}

void WandbLogger::take_along(const WandbPending& pending, WandbSink& sink) const {
  for (const std::string& name : metrics_) sink.metric(name);
  for (const WandbUpload& file : pending.files) sink.file(file);
  for (const WandbStats& stats : pending.stats) sink.stats(stats);
  for (const WandbRow& row : pending.rows) sink.history(row);
  if (!pending.console.empty()) sink.console(pending.console);
}

/// Nothing more is given out, so that the mark stays before all that is lost here.
void WandbLogger::die(const Error& error) {
  dead_ = fmt::format(
      "nothing more is logged in this start: {}\n  The next start of the run adds it from log.jsonl",
      error.what());
  sink_.reset();
  stream_ = nullptr;
  throw ResourceError("Weights & Biases: {}", dead_);
}

template <class Work>
void WandbLogger::do_or_go_offline(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (stream_ == nullptr) throw;
    const bool is_late = std::chrono::steady_clock::now() >= deadline_.load();
    go_offline(is_late ? "there is no time left to send it" : error.what());
  }
}

/// False if nothing is to be logged. @throws ResourceError if it cannot be any more
bool WandbLogger::is_open() {
  catch_up();
  if (!dead_.empty()) throw ResourceError("Weights & Biases: {}", dead_);
  return sink_ != nullptr;
}

void WandbLogger::add_row(WandbItems row, const LogMoment& moment) {
  const int64_t step = moment.number + step_shift_;
  for (const auto& [name, json] : row) {
    if (metrics_.insert(name).second) sink_->metric(name);
  }
  const double since = std::max(moment.unix_seconds - run_.start_unix_seconds, 0.0);
  const double runtime = since + runtime_before_;
  row.emplace_back(kWandbAxis, std::to_string(moment.step));
  row.emplace_back("_step", std::to_string(step));
  row.emplace_back("_timestamp", Json(moment.unix_seconds).dump());
  row.emplace_back("_runtime", Json(runtime).dump());
  for (const auto& [name, json] : row) summary_[name] = json;
  sink_->history({std::move(row), step});
  next_record_ = moment.number + 1;
  if (stream_ == nullptr) write_mark();
}

void WandbLogger::log(const LogRecord& record, const LogMoment& moment) {
  if (!is_open()) return;
  WandbItems row;
  for (const auto& [name, value] : record) row.emplace_back(name, json_of(value));
  add_row(std::move(row), moment);
  tick();
}

void WandbLogger::log_images(const std::vector<StoredImage>& images,
                             const std::string& section,
                             const LogMoment& moment) {
  if (!is_open() || images.empty()) return;
  add_pictures(images, section, moment);
  tick();
}

void WandbLogger::add_pictures(const std::vector<StoredImage>& images,
                               const std::string& section,
                               const LogMoment& moment) {
  Json names = Json::array(), captions = Json::array();
  bool has_captions = false;
  for (const StoredImage& image : images) {
    // A step that is done again after a resume has the same file in data_path, and another one here.
    const std::string name = fmt::format("media/images/{}_{}.png",
                                         std::filesystem::path(image.path).stem().string(),
                                         moment.number + step_shift_);
    sink_->file({.name = name, .content = *image.png});
    names.push_back(name);
    has_captions = has_captions || !image.caption.empty();
    captions.push_back(image.caption);
  }
  const PngHeader first = png_header(*images.front().png).value_or(PngHeader{});
  Json value = {{"_type", "images/separated"},
                {"width", first.width},
                {"height", first.height},
                {"format", "png"},
                {"count", images.size()},
                {"filenames", names}};
  if (has_captions) value["captions"] = captions;
  add_row({{section, json_line(value)}}, moment);
}

void WandbLogger::log_error(const std::string& message, const LogMoment& moment) {
  if (!is_open()) return;
  add_row({{"error", json_line(message)}}, moment);
  tick();
}

void WandbLogger::log_file(const std::string& name, const std::string& content) {
  if (is_open()) sink_->file({.name = name, .content = content});
}

void WandbLogger::add_console() {
  if (!console_) return;
  try {
    if (const auto lines = console_->take(); !lines.empty()) sink_->console(lines);
  } catch (const Error& error) {  // other records and the end of the run are worth more
    console_.reset();
    log_warning("track", "wandb: the console is recorded no further: {}", error.what());
  }
}

void WandbLogger::tick() {
  catch_up();
  if (!sink_) return;
  add_console();
  const auto now = std::chrono::steady_clock::now();
  if (now - stats_at_ >= kStatsEvery) {
    stats_at_ = now;
    sink_->stats({stats_.now(), wall_time_seconds()});
  }
  do_or_go_offline([this] { sink_->flush(summary_); });
  write_mark();
}

void WandbLogger::finish(const RunEnd& end) {
  catch_up();
  if (!sink_) return;
  const double runtime = wall_time_seconds() - run_.start_unix_seconds + runtime_before_;
  const auto last = [&] { sink_->end(end, static_cast<int64_t>(runtime), summary_); };
  const bool was_online = stream_ != nullptr;
  add_console();
  console_.reset();
  do_or_go_offline(last);
  if (was_online && stream_ == nullptr) last();
  write_mark();
  sink_.reset();
  stream_ = nullptr;
}

std::map<std::string, std::string> WandbLogger::resume_data() const {
  std::map<std::string, std::string> data = {{"entity", entity_}, {"project", project_}};
  std::string id = run_.info.path.run_id;
  if (id.empty()) id = resumed_id_;  // before init()
  if (id.empty()) id = config_.wandb_run_id.value_or("");
  if (id.empty()) return data;
  data["run_id"] = id;
  data[kFirstStep] = std::to_string(step_shift_);
  return data;
}

bool WandbLogger::set_attribute(const std::string& name, const std::string& value) {
  if (name == kFirstStep) {
    const std::optional<int64_t> step = number_of_digits(value);
    if (!step) throw ConfigError("\"{}\" is \"{}\", a number is expected", name, value);
    step_shift_ = *step;
    return true;
  }
  if (name != "entity" && name != "project" && name != "run_id") return false;
  if (value.empty()) throw ConfigError("\"{}\" is empty, a name is expected", name);
  (name == "entity" ? entity_ : name == "project" ? project_ : resumed_id_) = value;
  return true;
}

}  // namespace dalle2
