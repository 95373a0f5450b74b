// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "net/url.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts =
    3;  ///< of each request: one that is lost does not begin the whole send again
constexpr double kStatsSeconds = 15;  ///< a sign of life too: without one a run counts as crashed

/// Eight letters and digits, as the service's own client makes them.
std::string make_wandb_id() {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::random_device device;
  std::string id;
  for (int i = 0; i < 8; ++i) id += kLetters[device() % kLetters.size()];
  return id;
}

/// The service refuses such a name, and an offline run would show it only when it is sent.
void check_name(const char* what, const std::string& name, const char* forbidden) {
  const size_t at = name.find_first_of(forbidden);
  if (at == std::string::npos) return;
  throw ConfigError(
      "/tracker/log: {} is \"{}\": Weights & Biases allows no '{}' in it", what, name, name[at]);
}

}  // namespace

ConsoleLines::ConsoleLines(size_t most_bytes) {
  listener_ = add_log_listener([this, most_bytes](LogLevel level, const std::string& text) {
    const std::lock_guard lock(mutex_);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      bytes_ += line.size() + sizeof(WandbConsoleLine);
      if (bytes_ > most_bytes) return;
      lines_.push_back({line, level != LogLevel::kInfo, wall_time_seconds()});
    }
  });
}

ConsoleLines::~ConsoleLines() {
  remove_log_listener(listener_);
}

std::vector<WandbConsoleLine> ConsoleLines::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(lines_, {});
}

std::string no_run_to_continue(const WandbRunPath& run) {
  return fmt::format(
      "/tracker/log/wandb_run_id: there is no run {} to continue\n  Give the id of one, or leave out "
      "\"resume\" for a new run.",
      run.text());
}

WandbSink::WandbSink(WandbAccess access, WandbBegin begin)
    : api_(std::move(access),
           {.attempts = kAttempts, .ends_at_stop = false, .says_retries = false}),
      begin_(std::move(begin)) {
  api_.options().cancelled = [this] { return is_cancelled(); };
  if (!begin_.is_live) return;
  files_.push_back(
      {.name = "wandb-metadata.json", .content = stats_.metadata(begin_.run.start_unix_seconds)});
}

std::string WandbSink::key() const {
  const WandbAccess& access = api_.access();
  return (is_online() ? access.base_url : access.folder) + " " + begin_.run.info.path.text();
}

int64_t WandbSink::connect(const LogCursors& cursors, int64_t written) {
  const int64_t line =
      is_online() ? connect_to_service(cursors, written) : open_folder(cursors, written);
  read_earlier(line);
  if (api_.access().console && !console_) console_.emplace();
  return line;
}

/// The service's answer wins over the cursor. Lines of which it has later ones it would drop: their
/// numbers are shifted beyond.
int64_t WandbSink::connect_to_service(const LogCursors& cursors, int64_t written) {
  WandbRun& run = begin_.run;
  const bool is_first = target_ == nullptr;
  const std::optional<WandbRunState> known = api_.find_run(run.info.path);
  if (!known && begin_.must_exist) throw NetworkError("{}", no_run_to_continue(run.info.path));
  const std::vector<std::string> columns(columns_.begin(), columns_.end());
  new_columns_.clear();
  run.info.config = wandb_config(run.config, columns);
  run.info.path = api_.upsert(run.info);
  const WandbRunState state = known.value_or(WandbRunState{});
  const std::optional<LogCursor> cursor = cursors.furthest("/" + run.info.path.run_id);
  if (is_first) shift_ = cursor.value_or(LogCursor{}).shift;
  int64_t line = state.last_step + 1 - shift_;
  const bool is_of_others = is_first && known && !cursor && !begin_.goes_on;
  if (is_of_others || line > written) {
    // Rows of others, or of lines that the log has lost.
    line = is_of_others ? begin_.first_line
                        : std::min(cursor.value_or(LogCursor{written}).line, written);
    shift_ = state.last_step + 1 - line;
  }
  line = std::clamp(line, std::min(begin_.first_line, written), written);
  if (is_first) runtime_before_ = state.runtime_seconds;
  target_ = make_wandb_stream(api_, run, state, columns);
  if (is_first) {
    log_info("track", "Logging to Weights & Biases: {}", wandb_page(api_.access(), run.info.path));
  }
  return line;
}

/// Lines that are at the service or in an earlier folder do not come again.
int64_t WandbSink::open_folder(const LogCursors& cursors, int64_t written) {
  if (target_) return next_line_;  // after a fault of the disk
  const WandbRun& run = begin_.run;
  const std::optional<LogCursor> cursor = cursors.furthest("/" + run.info.path.run_id);
  int64_t line = begin_.first_line;
  if (cursor) {
    // The log may have lost lines that the run has; the steps of the next ones are beyond theirs.
    line = std::min(cursor->line, written);
    shift_ = cursor->shift + cursor->line - line;
  } else if (run.resumed) {
    // How far the run is, is not known here: the seconds since 1970 are beyond every step of a run that
    // logs less than a line a second.
    shift_ = static_cast<int64_t>(run.start_unix_seconds) - line;
  }
  next_line_ = line;
  std::string folder;
  target_ = make_wandb_folder(api_.access().folder, run, &folder);
  log_info(
      "track",
      "Weights & Biases: the run goes into {}: {}\n  Upload it with `wandb sync {}`, or send its "
      "rows with `dalle2-train sync {}`.",
      folder,
      api_.access().mode_reason,
      folder,
      begin_.data_path);
  return line;
}

/// Columns and their last values, which the summary shows, are those of the whole log.
void WandbSink::read_earlier(int64_t line) {
  LogLines lines((fs::path(begin_.data_path) / kLogFile).string());
  lines.go_to(read_before_);
  while (lines.next_line() < line) {
    const std::vector<JournalLine> some = lines.read(line, /*most=*/1000);
    if (some.empty()) break;
    for (const JournalLine& earlier : some) {
      if (!earlier.step() || earlier.record.contains("run_id")) continue;
      for (const auto& [name, value] : earlier.record.items()) {
        if (!is_value(name)) continue;
        know_column(name);
        if (!value.is_array()) summary_[name] = value.is_null() ? "NaN" : json_line(value);
      }
    }
  }
  read_before_ = std::max(read_before_, line);
}

void WandbSink::know_column(const std::string& name) {
  if (columns_.insert(name).second) new_columns_.push_back(name);
}

void WandbSink::send(const std::vector<JournalLine>& lines) {
  WandbBatch batch{.files = files_};
  for (const JournalLine& line : lines) {
    add(line, batch);
    if (is_online()) continue;
    hand_over(batch);  // one by one: after a fault of the disk the next line is known
    next_line_ = line.number + 1;
  }
  add_live(batch);
  hand_over(batch);
  if (!lines.empty()) next_line_ = lines.back().number + 1;
  files_.clear();
  read_before_ = std::max(read_before_, next_line_);
  if (missing_pictures_ == 0) return;
  log_warning("track",
              "Weights & Biases: {} of log.jsonl are not sent: {} has no such file",
              counted(std::exchange(missing_pictures_, 0), "picture"),
              begin_.data_path);
}

void WandbSink::hand_over(WandbBatch& batch) {
  batch.columns = new_columns_;
  batch.summary = summary_;
  target_->take(batch);
  new_columns_.clear();
  batch = {};
}

/// A row, with our own step beside the service's. A null was a NaN or an infinity.
void WandbSink::add(const JournalLine& line, WandbBatch& batch) {
  const std::optional<int64_t> step = line.step();
  if (!step || line.record.contains("run_id")) return;
  WandbItems row;
  for (const auto& [name, value] : line.record.items()) {
    if (!is_value(name)) continue;
    const std::string json = value.is_array()  ? pictures_of(value, line.number, batch)
                             : value.is_null() ? "NaN"
                                               : json_line(value);
    if (json.empty()) continue;
    row.emplace_back(name, json);
    know_column(name);
  }
  if (row.empty()) return;
  const double since = std::max(line.time() - begin_.run.start_unix_seconds, 0.0);
  row.emplace_back(kWandbAxis, std::to_string(*step));
  row.emplace_back("_step", std::to_string(line.number + shift_));
  row.emplace_back("_timestamp", Json(line.time()).dump());
  row.emplace_back("_runtime", Json(since + runtime_before_).dump());
  for (const auto& [name, json] : row) summary_[name] = json;
  batch.rows.emplace_back(line.number + shift_, std::move(row));
}

/// What a row says of its pictures, which come before it; empty without any.
std::string WandbSink::pictures_of(const Json& list, int64_t line, WandbBatch& batch) {
  Json names = Json::array(), captions = Json::array();
  bool has_captions = false;
  PngHeader first;
  for (const StoredImage& picture : logged_pictures(list)) {
    auto png = read_stored_picture(begin_.data_path, picture.path);
    if (!png) {
      ++missing_pictures_;
      continue;
    }
    // A step that is done again after a resume has the same file in data_path, and another one here.
    const std::string name = fmt::format(
        "media/images/{}_{}.png", fs::path(picture.path).stem().string(), line + shift_);
    if (names.empty()) first = png_header(*png).value_or(PngHeader{});
    batch.files.push_back({.name = name, .content = *std::move(png)});
    names.push_back(name);
    has_captions = has_captions || !picture.caption.empty();
    captions.push_back(picture.caption);
  }
  if (names.empty()) return "";
  Json value = {{"_type", "images/separated"},
                {"width", first.width},
                {"height", first.height},
                {"format", "png"},
                {"count", names.size()},
                {"filenames", names}};
  if (has_captions) value["captions"] = captions;
  return json_line(value);
}

/// What is of now alone: figures of an outage are lost, and lines beyond what console_ keeps.
void WandbSink::add_live(WandbBatch& batch) {
  if (!begin_.is_live) return;
  if (console_) batch.console = console_->take();
  const auto now = std::chrono::steady_clock::now();
  if (stats_at_ && now - *stats_at_ < std::chrono::duration<double>(kStatsSeconds)) return;
  stats_at_ = now;
  batch.stats = stats_.now();
  batch.stats_unix_seconds = wall_time_seconds();
}

void WandbSink::add_file(const std::string& name) {
  files_.push_back({.name = name, .path = (fs::path(begin_.data_path) / name).string()});
}

void WandbSink::end(const RunEnd& end) {
  WandbBatch last{.end = end};
  last.runtime_seconds =
      static_cast<int64_t>(wall_time_seconds() - begin_.run.start_unix_seconds + runtime_before_);
  hand_over(last);
}

WandbLogger::WandbLogger(const WandbLogConfig& config)
    : Logger("WandbLogger"),
      config_(config),
      entity_(config.wandb_entity.value_or("")),
      project_(config.wandb_project.value_or("")) {}

/// The id of the config or the environment, but first of all that of the starts before; with `resume` the
/// config's. Empty: a new one.
std::string WandbLogger::known_id() const {
  const std::string wanted = config_.wandb_run_id.value_or(access_ ? access_->run_id : "");
  return config_.resume ? wanted : first_of({run_id_, wanted});
}

/// Whether the login sees the project, and the run that is to be continued there. Which run a start
/// continues may change with its checkpoint.
void WandbLogger::check(Deadline deadline) {
  access_ = find_wandb_access();
  check_name("the id of the run (wandb_run_id, WANDB_RUN_ID)", known_id(), ":;,#?/'\\");
  check_name("wandb_project", project_, "/\\#?%:");
  check_name("wandb_entity", entity_, "/\\ #?%:");
  is_away_ = false;
  if (new_id_.empty()) new_id_ = make_wandb_id();
  if (access_->mode != WandbMode::kOnline) return;
  const WandbRunPath path{entity_, project_, first_of({known_id(), new_id_})};
  try {
    const WandbApi api(*access_, {.deadline = deadline});
    api.viewer();
    if (!api.find_run(path) && config_.resume) throw ConfigError("{}", no_run_to_continue(path));
  } catch (const NetworkError& error) {
    const auto* status = dynamic_cast<const HttpStatusError*>(&error);
    if (status != nullptr && !may_pass(error))
      throw HttpStatusError(status->status(), std::string("/tracker/log: ") + error.what());
    is_away_ = true;
    log_warning(
        "track",
        "Weights & Biases: {}\n  The run begins. Its rows wait in log.jsonl until the service "
        "answers.",
        error.what());
  }
}

std::unique_ptr<JournalSink> WandbLogger::make_sink(const RunFacts& facts) {
  D2_CHECK(access_.has_value(), "WandbLogger::check comes first");
  const std::string before = run_id_;
  if (facts.is_copy) run_id_.clear();  // that of another folder
  if (access_->mode == WandbMode::kDisabled) {
    log_info("track", "Nothing is logged to Weights & Biases: {}", access_->mode_reason);
    return nullptr;
  }
  WandbBegin begin;
  begin.first_line = facts.is_copy ? facts.lines : 0;
  begin.data_path = facts.data_path;
  begin.is_away = is_away_;
  begin.must_exist = config_.resume;
  std::string id = known_id();
  begin.goes_on = facts.goes_on && !id.empty() && id == before;
  if (facts.is_copy && id == before && !config_.resume && !id.empty()) {
    id.clear();
    log_info(
        "track",
        "The Weights & Biases run {} is that of the folder this one is a copy of: a new run begins",
        before);
  }
  run_id_ = first_of({id, new_id_});
  WandbRun& run = begin.run;
  run.resumed = begin.goes_on || config_.resume;
  run.info = {.path = {.entity = entity_, .project = project_, .run_id = run_id_},
              .name = config_.wandb_run_name.value_or(access_->name),
              .notes = access_->notes,
              .group = access_->group,
              .job_type = access_->job_type,
              .host = host_name(),
              .tags = access_->tags};
  run.config = wandb_items(facts.config);
  run.config.insert(run.config.end(), facts.process.begin(), facts.process.end());
  run.start_unix_seconds = wall_time_seconds();
  return std::make_unique<WandbSink>(*access_, std::move(begin));
}

std::string WandbLogger::wandb_run() const {
  const std::string id = known_id();
  return id.empty() ? "" : WandbRunPath{entity_, project_, id}.text();
}

}  // namespace dalle2
