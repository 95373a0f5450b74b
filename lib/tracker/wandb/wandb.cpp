// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "net/url.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// What a kill may leave out of the summary of an offline run.
constexpr auto kSummaryEvery = std::chrono::seconds(15);

/// A folder that is not there yet: two starts in a second have different ones.
std::string make_folder(const std::string& parent, const std::string& run_id, double unix_seconds) {
  const fs::path all(parent);
  std::error_code error;
  fs::create_directories(all, error);
  for (auto seconds = static_cast<std::time_t>(unix_seconds); !error; ++seconds) {
    const fs::path folder =
        all / fmt::format("offline-run-{:%Y%m%d_%H%M%S}-{}", fmt::localtime(seconds), run_id);
    if (!fs::create_directory(folder, error)) continue;
    if (fs::create_directory(folder / "files", error)) return folder.string();
    std::error_code ignored;
    fs::remove(folder, ignored);
  }
  throw ConfigError(
      "{}: cannot be made: {}\n  Set WANDB_DIR to another place.", all.string(), error.message());
}

class WandbFolder : public WandbTarget {
 public:
  WandbFolder(std::string path, const WandbRun& run)
      : path_(std::move(path)),
        file_((fs::path(path_) / fmt::format("run-{}.wandb", run.info.path.run_id)).string()) {
    file_.write_run(run);
    file_.write_metric(kWandbAxis, "");
  }

  void take(const WandbBatch& batch) override {
    for (const std::string& name : batch.columns) file_.write_metric(name, kWandbAxis);
    for (const WandbUpload& file : batch.files) store(file);
    for (const auto& [step, row] : batch.rows) file_.write_history(row, step);
    if (!batch.stats.empty()) file_.write_stats(batch.stats, batch.stats_unix_seconds);
    for (const WandbConsoleLine& line : batch.console)
      file_.write_console(line.text, line.is_error, line.unix_seconds);
    const auto now = std::chrono::steady_clock::now();
    // Not behind rows: if the disk refuses it they would be written again.
    if (batch.end || (batch.rows.empty() && now - summary_at_ >= kSummaryEvery)) {
      file_.write_summary(WandbItems(batch.summary.begin(), batch.summary.end()));
      summary_at_ = now;
    }
    if (!batch.end) return;
    if (batch.end->outcome == RunEnd::Outcome::kStopped) file_.write_preempting();
    file_.write_exit(batch.end->exit_code, batch.runtime_seconds);
  }

 private:
  void store(const WandbUpload& file) {
    const fs::path path = fs::path(path_) / "files" / file.name;
    std::error_code ignored;  // the writing says what is wrong
    fs::create_directories(path.parent_path(), ignored);
    write_file_atomically(path.string(), file.content);
    file_.write_file(file.name, file.name.starts_with("media/"));
  }

  std::string path_;
  WandbFile file_;
  std::chrono::steady_clock::time_point summary_at_ = std::chrono::steady_clock::now();
};

constexpr const char* kSummaryFile = "wandb-summary.json";

/// {"a": 1, "b": NaN} as one line.
std::string line_of(const WandbItems& items) {
  std::string line = "{";
  for (const auto& [key, json] : items) {
    if (line.size() > 1) line += ", ";
    line += json_line(key) + ": " + json;
  }
  return line + "}";
}

/// The sections of a config, a JSON object.
WandbItems wandb_items(const std::string& config) {
  WandbItems items;
  const Json object = parse_untrusted_object(config);
  for (const auto& [key, value] : object.items()) items.emplace_back(key, json_line(value));
  return items;
}

/// The config of a run as the service stores it: {"key": {"value": ...}, "_wandb": ...}.
std::string wandb_config(const WandbItems& config, const std::vector<std::string>& columns) {
  WandbItems whole;
  for (const auto& [key, json] : config) whole.emplace_back(key, "{\"value\": " + json + "}");
  // Numbers of fields of the service's messages: 1 the name, 5 the place of the axis in this list,
  // from 1; 6 with 3 says that it was asked for.
  Json definitions = Json::array({{{"1", kWandbAxis}, {"6", {3}}, {"7", Json::array()}}});
  for (const std::string& name : columns) {
    definitions.push_back({{"1", name}, {"5", 1}, {"6", {3}}, {"7", Json::array()}});
  }
  const Json own = {{"value", {{"m", definitions}}}};
  whole.emplace_back("_wandb", json_line(own));
  return line_of(whole);
}

/// "2026-11-25T15:23:34.272892 text" in UTC, as the service's own client sends it.
std::string console_text(const WandbConsoleLine& line) {
  const auto seconds = static_cast<std::time_t>(line.unix_seconds);
  const auto micros =
      static_cast<int64_t>((line.unix_seconds - static_cast<double>(seconds)) * 1e6);
  return fmt::format("{}{:%Y-%m-%dT%H:%M:%S}.{:06} {}",
                     line.is_error ? "ERROR " : "",
                     fmt::gmtime(seconds),
                     micros,
                     line.text);
}

/// A run that the service knows already.
class WandbStream : public WandbTarget {
 public:
  /// @param state what it has of the run
  /// @param columns that the config defines already
  WandbStream(const WandbApi& api,
              const WandbRun& run,
              const WandbRunState& state,
              const std::vector<std::string>& columns)
      : api_(api), run_(run), state_(state), columns_(columns) {}

  void take(const WandbBatch& batch) override {
    if (!batch.columns.empty()) {
      columns_.insert(columns_.end(), batch.columns.begin(), batch.columns.end());
      WandbRunInfo info = run_.info;
      info.config = wandb_config(run_.config, columns_);
      api_.upsert(info);
    }
    std::vector<WandbUpload> uploads = batch.files;
    WandbItems summary(batch.summary.begin(), batch.summary.end());
    if (batch.end) {  // `wandb sync` makes these of the records
      summary.emplace_back("_wandb", fmt::format(R"({{"runtime": {}}})", batch.runtime_seconds));
      uploads.push_back(
          {.name = "config.yaml", .content = wandb_config(run_.config, columns_)});  // JSON is YAML
      uploads.push_back({.name = kSummaryFile, .content = line_of(summary)});
    }
    // Pictures come before the rows that show them.
    if (!uploads.empty()) api_.upload(run_.info.path, uploads);
    Json request = Json::object();
    for (const WandbUpload& file : uploads) request["uploaded"].push_back(file.name);
    Json rows, stats, console;
    for (const auto& [step, row] : batch.rows) rows.push_back(line_of(row));
    if (!batch.stats.empty()) stats.push_back(stats_line(batch));
    for (const WandbConsoleLine& line : batch.console) console.push_back(console_text(line));
    // Lines by the service's names of files.
    const auto add = [&](const char* name, int64_t& offset, const Json& lines) {
      if (lines.empty()) return;
      request["files"][name] = {{"offset", offset}, {"content", lines}};
      offset += static_cast<int64_t>(lines.size());
    };
    WandbRunState after = state_;
    int64_t from_start = 0;
    add("wandb-history.jsonl", after.history_lines, rows);
    if (!rows.empty() || batch.end) add(kSummaryFile, from_start, Json::array({line_of(summary)}));
    add("wandb-events.jsonl", after.event_lines, stats);
    add("output.log", after.console_lines, console);
    if (batch.end) {
      request["complete"] = true;
      request["exitcode"] = batch.end->exit_code;
      if (batch.end->outcome == RunEnd::Outcome::kStopped) request["preempting"] = true;
    }
    api_.stream(run_.info.path, request);
    state_ = after;
  }

 private:
  std::string stats_line(const WandbBatch& batch) const {
    WandbItems items;
    for (const auto& [key, json] : batch.stats) items.emplace_back("system." + key, json);
    items.emplace_back("_timestamp", Json(batch.stats_unix_seconds).dump());
    items.emplace_back("_runtime", Json(batch.stats_unix_seconds - run_.start_unix_seconds).dump());
    items.emplace_back("_wandb", "true");
    return line_of(items);
  }

  const WandbApi& api_;
  const WandbRun run_;
  WandbRunState state_;
  std::vector<std::string> columns_;
};

constexpr int kAttempts = 3;  ///< of a request: one that is lost does not begin the send again
constexpr double kStatsSeconds = 15;  ///< a sign of life too: without one a run counts as crashed

/// The content of wandb-metadata.json.
std::string machine_text() {
  utsname system{};
  ::uname(&system);
  const Json text = {
      {"os", fmt::format("{}-{}-{}", system.sysname, system.release, system.machine)},
      {"program", "dalle2-train " + program_version()},
      {"host", host_name()},
      {"cpu_count", std::max(std::thread::hardware_concurrency(), 1U)},
      {"memory", {{"total", std::to_string(machine_memory())}}}};
  return text.dump(2, ' ', false, Json::error_handler_t::replace);
}

/// The service refuses such a name, and an offline run would show it only when it is sent.
void check_name(const char* what, const std::string& name, const char* forbidden) {
  const size_t at = name.find_first_of(forbidden);
  if (at == std::string::npos) return;
  throw ConfigError(
      "/tracker/log: {} is \"{}\": Weights & Biases allows no '{}' in it", what, name, name[at]);
}

bool is_row_of(const JournalLine& line, const Json& row) {
  bool same = line.step() && json_at(row, {kWandbAxis}) == *line.step() &&
              json_at(row, {"_timestamp"}) == line.time();
  for (const auto& it : line.record.items())  // pictures may have been missing
    same &= !is_value(it.key()) || it.value().is_array() || row.contains(it.key());
  return same;
}

std::string no_run_to_continue(const WandbRunPath& run) {
  return fmt::format(
      "/tracker/log/wandb_run_id: there is no run {} to continue\n  Give the id of one, or leave out "
      "\"resume\" for a new run.",
      run.text());
}

}  // namespace

std::unique_ptr<WandbTarget> make_wandb_folder(const std::string& parent,
                                               const WandbRun& run,
                                               std::string* path) {
  *path = make_folder(parent, run.info.path.run_id, run.start_unix_seconds);
  try {
    return std::make_unique<WandbFolder>(*path, run);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(*path, ignored);
    throw;
  }
}

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

WandbLogger::WandbLogger(const WandbLogConfig& config)
    : Logger("WandbLogger"),
      config_(config),
      entity_(config.wandb_entity.value_or("")),
      project_(config.wandb_project.value_or("")) {}

WandbLogger::WandbLogger(const WandbRunPath& run, const WandbAccess& access)
    : Logger("WandbLogger"),
      config_(),
      entity_(run.entity),
      project_(run.project),
      run_id_(run.run_id),
      is_live_(false) {
  use(access);
}

void WandbLogger::use(const WandbAccess& access) {
  api_.emplace(access,
               HttpOptions{.attempts = kAttempts,
                           .ends_at_stop = false,
                           .cancelled = [this] { return is_cancelled(); },
                           .says_retries = false});
}

/// That of the starts before, else of the config or environment; with `resume` the config's. Empty: a new one.
std::string WandbLogger::known_id() const {
  const std::string wanted = config_.wandb_run_id.value_or(api_ ? api_->access().run_id : "");
  return config_.resume ? wanted : first_of({run_id_, wanted});
}

/// Whether the login sees the project, and the run that is to be continued there. Which run a start
/// continues may change with its checkpoint.
void WandbLogger::check(Deadline deadline) {
  use(find_wandb_access());
  check_name("the id of the run (wandb_run_id, WANDB_RUN_ID)", known_id(), ":;,#?/'\\");
  check_name("wandb_project", project_, "/\\#?%:");
  check_name("wandb_entity", entity_, "/\\ #?%:");
  away_seconds_.reset();
  if (new_id_.empty()) new_id_ = make_run_id().substr(24);  // 48 random bits
  if (api_->access().mode != WandbMode::kOnline) return;
  const WandbRunPath path{entity_, project_, first_of({known_id(), new_id_})};
  try {
    const WandbApi api(api_->access(), {.deadline = deadline});
    api.viewer();
    if (!api.find_run(path) && config_.resume) throw ConfigError("{}", no_run_to_continue(path));
  } catch (const NetworkError& error) {
    const auto* status = dynamic_cast<const HttpStatusError*>(&error);
    if (status != nullptr && !may_pass(error))
      throw HttpStatusError(status->status(), std::string("/tracker/log: ") + error.what());
    away_seconds_ = status == nullptr ? 0 : status->retry_after().value_or(0);
    log_warning(
        "track",
        "Weights & Biases: {}\n  The run begins. Its rows wait in log.jsonl until the service "
        "answers.",
        error.what());
  }
}

bool WandbLogger::begin(const RunFacts& facts) {
  D2_CHECK(api_.has_value(), "WandbLogger::check comes first");
  const WandbAccess& access = api_->access();
  const std::string before = run_id_;
  if (facts.is_copy) run_id_.clear();  // that of another folder
  if (access.mode == WandbMode::kDisabled) {
    log_info("track", "Nothing is logged to Weights & Biases: {}", access.mode_reason);
    return false;
  }
  std::string id = known_id();
  goes_on_ = facts.goes_on && !id.empty() && id == before;
  if (facts.is_copy && id == before && !config_.resume && !id.empty()) {
    id.clear();
    log_info(
        "track",
        "The Weights & Biases run {} is that of the folder this one is a copy of: a new run begins",
        before);
  }
  run_id_ = first_of({id, new_id_});
  first_line_ = facts.first_line;
  data_path_ = facts.data_path;
  run_.resumed = goes_on_ || config_.resume;
  run_.info = {.path = {.entity = entity_, .project = project_, .run_id = run_id_},
               .name = config_.wandb_run_name.value_or(access.name),
               .notes = access.notes,
               .group = access.group,
               .job_type = access.job_type,
               .host = is_live_ ? host_name() : "",
               .tags = access.tags};
  run_.config = wandb_items(facts.config);
  run_.config.insert(run_.config.end(), facts.process.begin(), facts.process.end());
  run_.start_unix_seconds = wall_time_seconds();
  for (const auto& [name, content] : facts.files)
    files_.push_back({.name = name, .content = content});
  if (!is_live_) return true;
  files_.push_back({.name = "wandb-metadata.json", .content = machine_text()});
  return true;
}

std::string WandbLogger::wandb_run() const {
  const std::string id = known_id();
  return id.empty() ? "" : WandbRunPath{entity_, project_, id}.text();
}

std::string WandbLogger::key() const {
  const WandbAccess& access = api_->access();
  return (is_online() ? access.base_url : access.folder) + " " + run_.info.path.text();
}

int64_t WandbLogger::connect(const LogCursors& cursors, int64_t written) {
  const int64_t line =
      is_online() ? connect_to_service(cursors, written) : open_folder(cursors, written);
  read_earlier(line);
  if (api_->access().console && !console_) console_.emplace();
  return line;
}

/// The service's answer wins over the cursor if its last row is ours. Else our steps are shifted beyond that.
int64_t WandbLogger::connect_to_service(const LogCursors& cursors, int64_t written) {
  const bool is_first = target_ == nullptr;
  const std::optional<WandbRunState> known = api_->find_run(run_.info.path);
  if (!known && config_.resume) throw NetworkError("{}", no_run_to_continue(run_.info.path));
  const std::vector<std::string> columns(columns_.begin(), columns_.end());
  new_columns_.clear();
  run_.info.config = wandb_config(run_.config, columns);
  run_.info.path = api_->upsert(run_.info);
  const WandbRunState state = known.value_or(WandbRunState{});
  const std::optional<LogCursor> cursor = cursors.nearest(key());
  if (is_first) shift_ = cursor.value_or(LogCursor{}).shift;
  int64_t line = state.last_step + 1 - shift_;
  std::optional<int64_t> last;  // of our lines; none: its last row is of others, or lost here
  const auto look_at = [&](const JournalLine& it) {
    if (is_row_of(it, state.last_row)) last = it.number;
  };
  LogLines log((fs::path(data_path_) / kLogFile).string());
  log.go_to(std::max<int64_t>(line - 1, 0));  // where it is unless others have added rows
  std::ranges::for_each(log.read(written, 1), look_at);
  log.go_to(0);
  if (!last && state.last_step >= 0) log.each(written, look_at);
  if (last)
    line = *last + 1;
  else if (state.last_step >= 0 && (cursor || !goes_on_))
    line = cursor ? cursor->line : first_line_;
  line = std::clamp(line, std::min(first_line_, written), written);
  if (state.last_step >= 0) shift_ = state.last_step + 1 - line;
  if (is_first) runtime_before_ = state.runtime_seconds;
  target_ = std::make_unique<WandbStream>(*api_, run_, state, columns);
  if (is_first) {
    log_info(
        "track", "Logging to Weights & Biases: {}", wandb_page(api_->access(), run_.info.path));
  }
  return line;
}

/// Lines that are at the service or in an earlier folder do not come again.
int64_t WandbLogger::open_folder(const LogCursors& cursors, int64_t written) {
  if (target_) return next_line_;  // after a fault of the disk
  const std::string id = run_.info.path.run_id, parent = api_->access().folder;
  std::optional<LogCursor> cursor = cursors.furthest("/" + id);
  const bool asks_folders = goes_on_ && !cursor;
  for (const std::string& name :
       asks_folders ? names_ending(parent, "-" + id) : std::vector<std::string>()) {
    const LogCursors in_folder((fs::path(parent) / name / kFollowersFile).string());
    const std::optional<LogCursor> known = in_folder.furthest(fs::absolute(data_path_).string());
    if (known && (!cursor || cursor->line < known->line)) cursor = known;
  }
  int64_t line = first_line_;
  if (cursor) {
    // The log may have lost lines that the run has; the steps of the next ones are beyond theirs.
    line = std::min(cursor->line, written);
    shift_ = cursor->shift + cursor->line - line;
  } else if (run_.resumed) {
    // How far the run is, is not known here: the seconds since 1970 are beyond it, at less than a line a second.
    shift_ = static_cast<int64_t>(run_.start_unix_seconds) - line;
  }
  next_line_ = line;
  std::string folder;
  target_ = make_wandb_folder(parent, run_, &folder);
  in_folder_.emplace((fs::path(folder) / kFollowersFile).string());
  keep_cursor();
  log_info(
      "track",
      "Weights & Biases: the run goes into {}: {}\n  Upload it with `wandb sync {}`, or send its "
      "rows with `dalle2-train sync {}`.",
      folder,
      api_->access().mode_reason,
      folder,
      data_path_);
  return line;
}

/// In the folder too, for a start that has lost followers.json.
void WandbLogger::keep_cursor() {
  if (!in_folder_) return;
  in_folder_->set(fs::absolute(data_path_).string(), {next_line_, shift_});
  in_folder_->save();
}

/// Columns and their last values, which the summary shows, are those of the whole log.
void WandbLogger::read_earlier(int64_t line) {
  LogLines lines((fs::path(data_path_) / kLogFile).string());
  lines.go_to(read_before_);
  lines.each(line, [this](const JournalLine& earlier) {
    if (!earlier.step() || earlier.record.contains("run_id")) return;
    for (const auto& [name, value] : earlier.record.items()) {
      if (!is_value(name)) continue;
      know_column(name);
      if (!value.is_array()) summary_[name] = value.is_null() ? "NaN" : json_line(value);
    }
  });
  read_before_ = std::max(read_before_, line);
}

void WandbLogger::know_column(const std::string& name) {
  if (columns_.insert(name).second) new_columns_.push_back(name);
}

void WandbLogger::send(const std::vector<JournalLine>& lines) {
  missing_pictures_ = 0;
  WandbBatch batch{.files = files_};
  for (const JournalLine& line : lines) {
    add(line, batch);
    if (is_online()) continue;
    hand_over(batch);  // one by one: after a fault of the disk the next line is known
    next_line_ = line.number + 1;
  }
  add_live(batch);
  try {
    hand_over(batch);
  } catch (const RefusedFiles& error) {
    log_error(
        "track", "{}: not sent: {}\n  {}", name(), fmt::join(error.names, ", "), error.what());
    refused_.insert(error.names.begin(), error.names.end());
    std::erase_if(files_, [&](const WandbUpload& file) { return refused_.contains(file.name); });
    return send(lines);
  }
  if (!lines.empty()) next_line_ = lines.back().number + 1;
  files_.clear();
  read_before_ = std::max(read_before_, next_line_);
  if (missing_pictures_ == 0) return;
  log_warning("track",
              "Weights & Biases: {} of log.jsonl are not sent: {} has no such file",
              counted(missing_pictures_, "picture"),
              data_path_);
}

void WandbLogger::hand_over(WandbBatch& batch) {
  batch.columns = new_columns_;
  batch.summary = summary_;
  target_->take(batch);
  new_columns_.clear();
  batch = {};
}

/// A row, with our own step beside the service's. A null was a NaN or an infinity.
void WandbLogger::add(const JournalLine& line, WandbBatch& batch) {
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
  const double since = std::max(line.time() - run_.start_unix_seconds, 0.0);
  row.emplace_back(kWandbAxis, std::to_string(*step));
  row.emplace_back("_step", std::to_string(line.number + shift_));
  row.emplace_back("_timestamp", Json(line.time()).dump());
  row.emplace_back("_runtime", Json(since + runtime_before_).dump());
  for (const auto& [name, json] : row) summary_[name] = json;
  batch.rows.emplace_back(line.number + shift_, std::move(row));
}

/// What a row says of its pictures, which come before it; empty without any.
std::string WandbLogger::pictures_of(const Json& list, int64_t line, WandbBatch& batch) {
  Json names = Json::array(), captions = Json::array();
  bool has_captions = false;
  PngHeader first;
  for (const StoredImage& picture : logged_pictures(list)) {
    auto png = read_stored_picture(data_path_, picture.path);
    if (!png) {
      ++missing_pictures_;
      continue;
    }
    // A step that is done again after a resume has the same file in data_path, and another one here.
    const std::string name = fmt::format(
        "media/images/{}_{}.png", fs::path(picture.path).stem().string(), line + shift_);
    if (refused_.contains(name)) continue;
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
void WandbLogger::add_live(WandbBatch& batch) {
  if (!is_live_) return;
  if (console_) batch.console = console_->take();
  const double now = wall_time_seconds(), passed = now - stats_at_;
  if (passed >= 0 && passed < kStatsSeconds) return;
  // By the names of the service's own client, without "system.".
  const auto add = [&](const char* name, double value) {
    batch.stats.emplace_back(name, Json(value).dump());
  };
  const auto resident = static_cast<double>(process_memory("VmRSS"));
  const double cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  add("proc.memory.rssMB", resident / (1 << 20));
  add("proc.memory.percent", 100 * resident / static_cast<double>(machine_memory()));
  if (stats_at_ > 0 && passed > 0) add("cpu", 100 * (cpu - cpu_seconds_) / passed);
  batch.stats_unix_seconds = stats_at_ = now;
  keep_cursor();
  cpu_seconds_ = cpu;
}

void WandbLogger::end(const RunEnd& end) {
  WandbBatch last{.end = end};
  last.runtime_seconds =
      static_cast<int64_t>(wall_time_seconds() - run_.start_unix_seconds + runtime_before_);
  hand_over(last);
  keep_cursor();
}

}  // namespace dalle2
