// SPDX-License-Identifier: MIT
#include "tracker/wandb/wandb_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "tracker/run_folder/run_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr double kSendSeconds = 5;
constexpr int kAttempts =
    3;  ///< of each request: one that is lost does not begin the whole send again
constexpr double kStatsSeconds = 15;  ///< a sign of life too: without one a run counts as crashed

}  // namespace

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
  const bool is_online = access.mode == WandbMode::kOnline;
  return (is_online ? access.base_url : access.folder) + " " + begin_.run.info.path.text();
}

double WandbSink::pause() const {
  return api_.access().mode == WandbMode::kOnline ? kSendSeconds : 0;
}

double WandbSink::idle_pause() const {
  return kStatsSeconds;
}

int64_t WandbSink::connect(const LogCursors& cursors, int64_t written) {
  const bool is_online = api_.access().mode == WandbMode::kOnline;
  const int64_t line =
      is_online ? connect_to_service(cursors, written) : open_folder(cursors, written);
  read_earlier(line);
  if (api_.access().console && !console_) console_.emplace();
  return line;
}

/// The service's answer wins over the cursor. Lines of which it has later ones it would drop: their
/// numbers are shifted beyond.
int64_t WandbSink::connect_to_service(const LogCursors& cursors, int64_t written) {
  WandbRun& run = begin_.run;
  const bool is_first = rows_ == nullptr;
  const std::optional<WandbRunState> known = api_.find_run(run.info.path);
  const std::vector<std::string> columns(columns_.begin(), columns_.end());
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
  rows_ = make_wandb_stream(api_, run, state, columns);
  if (is_first) {
    log_info("track", "Logging to Weights & Biases: {}", wandb_page(api_.access(), run.info.path));
  }
  return line;
}

/// Lines that are at the service or in an earlier folder do not come again.
int64_t WandbSink::open_folder(const LogCursors& cursors, int64_t written) {
  if (rows_) return next_line_;  // after a fault of the disk
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
  rows_ = make_wandb_folder(api_.access().folder, run, &folder);
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
        if (columns_.insert(name).second) rows_->column(name);
        if (!value.is_array()) summary_[name] = value.is_null() ? "NaN" : json_line(value);
      }
    }
  }
  read_before_ = std::max(read_before_, line);
}

void WandbSink::send(const std::vector<JournalLine>& lines) {
  for (const WandbUpload& file : files_) rows_->file(file);
  for (const JournalLine& line : lines) {
    add(line);
    next_line_ = line.number + 1;
  }
  add_live();
  rows_->flush(summary_);
  files_.clear();
  read_before_ = std::max(read_before_, next_line_);
  if (missing_pictures_ == 0) return;
  log_warning("track",
              "Weights & Biases: {} of log.jsonl are not sent: {} has no such file",
              counted(std::exchange(missing_pictures_, 0), "picture"),
              begin_.data_path);
}

/// A row, with our own step beside the service's. A null was a NaN or an infinity.
void WandbSink::add(const JournalLine& line) {
  const std::optional<int64_t> step = line.step();
  if (!step || line.record.contains("run_id")) return;
  WandbItems row = items_of(line);
  if (row.empty()) return;
  for (const auto& [name, json] : row) {
    if (columns_.insert(name).second) rows_->column(name);
  }
  const double since = std::max(line.time() - begin_.run.start_unix_seconds, 0.0);
  row.emplace_back(kWandbAxis, std::to_string(*step));
  row.emplace_back("_step", std::to_string(line.number + shift_));
  row.emplace_back("_timestamp", Json(line.time()).dump());
  row.emplace_back("_runtime", Json(since + runtime_before_).dump());
  for (const auto& [name, json] : row) summary_[name] = json;
  rows_->history(row, line.number + shift_);
}

WandbItems WandbSink::items_of(const JournalLine& line) {
  WandbItems items;
  for (const auto& [name, value] : line.record.items()) {
    if (!is_value(name)) continue;
    if (!value.is_array()) {
      items.emplace_back(name, value.is_null() ? "NaN" : json_line(value));
    } else if (const std::string pictures = pictures_of(value, line.number); !pictures.empty()) {
      items.emplace_back(name, pictures);
    }
  }
  return items;
}

/// What a row says of its pictures, which come before it; empty without any.
std::string WandbSink::pictures_of(const Json& list, int64_t line) {
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
    rows_->file({.name = name, .content = *std::move(png)});
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

/// What is of now alone: it is lost in an outage.
void WandbSink::add_live() {
  if (!begin_.is_live) return;
  if (console_) {
    if (const auto lines = console_->take(); !lines.empty()) rows_->console(lines);
  }
  const auto now = std::chrono::steady_clock::now();
  if (stats_at_ && now - *stats_at_ < std::chrono::duration<double>(kStatsSeconds)) return;
  stats_at_ = now;
  rows_->stats(stats_.now(), wall_time_seconds());
}

void WandbSink::add_file(const std::string& name) {
  files_.push_back({.name = name, .path = (fs::path(begin_.data_path) / name).string()});
}

int64_t WandbSink::runtime_seconds() const {
  return static_cast<int64_t>(wall_time_seconds() - begin_.run.start_unix_seconds +
                              runtime_before_);
}

void WandbSink::end(const RunEnd& end) {
  rows_->end(end, runtime_seconds(), summary_);
}

}  // namespace dalle2
