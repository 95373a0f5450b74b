// SPDX-License-Identifier: MIT
#include "tracker/log/follower.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/files/atomic_file.h"
#include "net/http_transfer.h"

namespace dalle2 {
namespace {

constexpr size_t kMostLines = 1000;      ///< of a request
constexpr double kIdlePause = 15;        ///< seconds between two sends without lines
constexpr double kEndPause = 2;          ///< seconds between attempts at the end, at most
constexpr double kBetweenErrors = 3600;  ///< seconds, of the same sink in the log
constexpr double kBetweenSaves = 5;      ///< seconds, of followers.json
constexpr std::chrono::milliseconds kFollowerGlance{500};  ///< at what nobody notifies of

std::chrono::steady_clock::duration seconds(double value) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(value));
}

}  // namespace

LogCursors::LogCursors(std::string path) : path_(std::move(path)) {
  try {
    const Json content = parse_untrusted_object(read_file(path_));
    for (const auto& [sink, entry] : content.items()) {
      cursors_[sink] = {std::max<int64_t>(entry.at("line").get<int64_t>(), 0),
                        entry.at("shift").get<int64_t>()};
    }
  } catch (const std::exception&) {  // each sink finds out by itself how far it is
  }
}

std::optional<LogCursor> LogCursors::furthest(const std::string& ending) const {
  const std::lock_guard lock(mutex_);
  std::optional<LogCursor> best;
  for (const auto& [sink, cursor] : cursors_) {
    if (sink.ends_with(ending) && (!best || best->line < cursor.line)) best = cursor;
  }
  return best;
}

void LogCursors::set(const std::string& sink, const LogCursor& cursor) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = cursors_.emplace(sink, cursor);
  changed_ |= is_new || known->second.line != cursor.line || known->second.shift != cursor.shift;
  known->second = cursor;
}

void LogCursors::save() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(changed_, false)) return;
  Json content = Json::object();
  for (const auto& [sink, cursor] : cursors_) {
    content[sink] = {{"line", cursor.line}, {"shift", cursor.shift}};
  }
  try {
    write_file_atomically(path_, content.dump(1) + "\n");
  } catch (const Error&) {
    changed_ = true;
  }
}

Follower::Follower(std::unique_ptr<JournalSink> sink,
                   FollowedLog log,
                   LogCursors& cursors,
                   const FollowerTimes& times)
    : sink_(std::move(sink)),
      log_(std::move(log)),
      cursors_(cursors),
      times_(times),
      lines_(log_.path) {}

Follower::~Follower() {
  sink_->cancel();
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Follower::connect_now(Deadline deadline) {
  if (sink_->is_away()) {
    away_ = fault_ = true;
    return;
  }
  sink_->set_deadline(deadline);
  try {
    connect();
  } catch (const NetworkError& error) {
    if (!may_pass(error)) throw;  // it does not want it: waiting alone changes nothing
    note_fault(error, /*at_end=*/false);
  }
  sink_->set_deadline(std::nullopt);
}

void Follower::start() {
  thread_ = std::thread([this] { work(); });
}

void Follower::notify() {
  wake_.notify_all();
}

void Follower::add_file(const std::string& name) {
  const std::lock_guard lock(mutex_);
  files_.push_back(name);
}

void Follower::begin_end(const RunEnd& end) {
  {
    const std::lock_guard lock(mutex_);
    end_ = end;
  }
  fault_ = false;
  wake_.notify_all();
}

int64_t Follower::waiting() const {
  return log_.written() - line_.load();
}

Follower::Clock::time_point Follower::next_time() const {
  if (!connected_) return retry_at_;
  if (end_) return {};
  return sent_at_ + seconds(waiting() > 0 ? sink_->pause() : kIdlePause);
}

void Follower::work() {
  std::unique_lock lock(mutex_);
  bool tried_last = false;
  while (!sink_->is_cancelled() && !done_) {
    // The end tries once more, whatever the pause.
    const Clock::duration left = next_time() - times_.now();
    if (left > Clock::duration::zero() && (!end_ || tried_last)) {
      times_.wait(wake_, lock, std::min<Clock::duration>(left, kFollowerGlance));
      continue;
    }
    const std::optional<RunEnd> end = end_;
    const std::vector<std::string> files = std::exchange(files_, {});
    tried_last = end.has_value();
    lock.unlock();
    try_once(files, end);
    lock.lock();
  }
}

void Follower::try_once(const std::vector<std::string>& files, const std::optional<RunEnd>& end) {
  try {
    log_.check();
  } catch (const Error&) {  // another start has taken the run over
    sink_->cancel();
    done_ = true;
    return;
  }
  bool done = false;
  try {
    for (const std::string& name : files) sink_->add_file(name);
    if (!connected_) connect();
    if (!send_lines() && end) {
      sink_->end(*end);
      done = true;
    }
    note_success();
  } catch (const std::exception& error) {
    if (!sink_->is_cancelled()) note_fault(error, end.has_value());
  }
  if (!sink_->is_cancelled()) save_cursor(/*now=*/end.has_value());
  if (done) done_ = true;
}

void Follower::connect() {
  const int64_t line = sink_->connect(cursors_, log_.written());
  lines_.go_to(line);
  line_ = line;
  connected_ = true;
  cursors_.set(sink_->key(), {line, sink_->shift()});
}

/// @return whether there were any
bool Follower::send_lines() {
  const std::vector<JournalLine> lines = lines_.read(log_.written(), kMostLines);
  if (!lines.empty()) log_.sync();  // nobody has what a crash of the machine may take from the log
  sink_->send(lines);
  sent_at_ = times_.now();
  line_ = lines_.next_line();
  return !lines.empty();
}

void Follower::note_success() {
  fault_ = false;
  pause_ = 0;
  if (std::exchange(away_, false)) log_info("track", "{}: is back", sink_->name());
}

void Follower::note_fault(const std::exception& error, bool at_end) {
  fault_ = true;
  connected_ = false;
  pause_ = std::clamp(2 * pause_, times_.first_pause, at_end ? kEndPause : times_.longest_pause);
  if (const auto* status = dynamic_cast<const HttpStatusError*>(&error)) {
    pause_ = std::max(pause_, status->retry_after().value_or(0));
  }
  retry_at_ = times_.now() + seconds(pause_);
  const auto* network = dynamic_cast<const NetworkError*>(&error);
  if (network != nullptr && may_pass(*network)) {
    if (std::exchange(away_, true)) return;
    log_warning(
        "track",
        "{}: {}\n  The run continues. Rows wait in log.jsonl, and it is asked again until it "
        "answers.",
        sink_->name(),
        error.what());
    return;
  }
  if (told_at_ && times_.now() < *told_at_ + seconds(kBetweenErrors)) return;
  told_at_ = times_.now();
  log_.log_error(fmt::format(
      "{}: {}\n  Rows wait in log.jsonl, and it is asked again.", sink_->name(), error.what()));
}

void Follower::save_cursor(bool now) {
  if (connected_) cursors_.set(sink_->key(), {line_.load(), sink_->shift()});
  if (!now && times_.now() < saved_at_ + seconds(kBetweenSaves)) return;
  saved_at_ = times_.now();
  cursors_.save();
}

}  // namespace dalle2
