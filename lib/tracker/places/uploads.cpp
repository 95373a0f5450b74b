// SPDX-License-Identifier: MIT
#include "tracker/places/uploads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoteEnding = ".json";
constexpr const char* kPartsEnding = ".parts";  ///< UploadNotes

/// 12 of "00000012.json", "00000012.parts" and "00000012_latest.pth", also with ".part"; none of other names.
std::optional<int64_t> number_of(const std::string& name) {
  constexpr size_t kDigits = 8;
  const size_t end = name.find_first_of("._");
  if (end == std::string::npos || end < kDigits) return std::nullopt;
  return number_of_digits(name.substr(0, end));
}

std::string note_of(const OutboxEntry& entry) {
  const Json note = {{"to", entry.to},
                     {"target", entry.target},
                     {"kind", entry.kind},
                     {"file", fs::path(entry.path).filename().string()},
                     {"only_if_absent", entry.only_if_absent}};
  return note.dump(1) + "\n";
}

/// What a note says; an entry without a path if it is damaged, or its file is not there.
/// @throws DataError that cannot be known now
OutboxEntry read_note(const fs::path& path) {
  OutboxEntry entry;
  const Json note = parse_untrusted_object(read_file(path.string()));
  std::string file;
  try {
    note.at("to").get_to(entry.to);
    note.at("target").get_to(entry.target);
    note.at("kind").get_to(entry.kind);
    note.at("file").get_to(file);
    entry.only_if_absent = note.value("only_if_absent", false);
  } catch (const Json::exception&) {
    return {};
  }
  entry.number = number_of(path.filename().string()).value_or(0);
  // A name within the folder, of this number: nothing else is ever sent.
  const bool is_plain = file.find('/') == std::string::npos && number_of(file) == entry.number;
  const bool is_whole = entry.number > 0 && is_plain && !entry.to.empty() && !entry.target.empty();
  const fs::path full = path.parent_path() / file;
  std::error_code error;
  const fs::file_type type = fs::symlink_status(full, error).type();
  if (type == fs::file_type::none) throw DataError("{}: {}", full.string(), error.message());
  if (!is_whole || type != fs::file_type::regular) return {};
  entry.path = full.string();
  entry.bytes = fs::file_size(full, error);
  return entry;
}

constexpr double kFirstPause = 30, kLongestPause = 600;  // seconds
constexpr auto kGlance = std::chrono::seconds(1);
constexpr double kSecondsAfterTrouble = 10;  // at the end

}  // namespace

Outbox::Outbox(std::string folder, FreeBytes free_bytes)
    : folder_(std::move(folder)), free_bytes_(std::move(free_bytes)) {
  std::vector<int64_t> left;  // numbers of what is neither sent nor removed
  for (const std::string& name : names_ending(folder_, kNoteEnding)) {
    if (!number_of(name)) continue;
    const int64_t number = *number_of(name);
    next_number_ = std::max(next_number_, number + 1);
    try {
      OutboxEntry entry = read_note(fs::path(folder_) / name);
      if (entry.path.empty()) continue;
      const std::string parts = path_of(number, kPartsEnding);
      std::error_code ignored;
      if (fs::exists(parts, ignored)) entry.notes = read_file(parts);
      // A kill while a file was being sent leaves the one that has replaced it too.
      for (OutboxEntry& older : entries_) older.replaced |= older.is_for_same_target(entry);
      entries_.push_back(std::move(entry));
    } catch (const DataError& error) {
      log_warning("track", "{}\n  It is left as it is, and not sent.", error.what());
      left.push_back(number);
    }
  }
  remove_done();
  // It leaves files without notes, notes without files, and unfinished parts. What has another name is
  // somebody else's.
  for (const OutboxEntry& entry : entries_) left.push_back(entry.number);
  for (const std::string& name : names_in_folder(folder_)) {
    const fs::path path = fs::path(folder_) / name;
    std::error_code error;
    const bool is_known = std::find(left.begin(), left.end(), number_of(name)) != left.end() &&
                          !name.ends_with(".part");
    if (!number_of(name) || is_known) continue;
    if (!fs::is_directory(fs::symlink_status(path, error))) remove_file(path.string());
  }
}

std::string Outbox::path_of(int64_t number, const char* ending) const {
  return (fs::path(folder_) / fmt::format("{:08}{}", number, ending)).string();
}

OutboxEntry* Outbox::find(int64_t number) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const OutboxEntry& entry) {
    return entry.number == number;
  });
  return found == entries_.end() ? nullptr : &*found;
}

/// The note first: a file without one is nothing.
void Outbox::remove(const OutboxEntry& entry) {
  remove_file(path_of(entry.number, kNoteEnding));
  remove_file(path_of(entry.number, kPartsEnding));
  remove_file(entry.path);
}

void Outbox::remove_done() {
  const auto done = std::stable_partition(
      entries_.begin(), entries_.end(), [](const OutboxEntry& entry) { return !entry.may_go(); });
  const std::vector<OutboxEntry> gone(done, entries_.end());
  entries_.erase(done, entries_.end());
  for (const OutboxEntry& entry : gone) remove(entry);
}

std::vector<OutboxEntry> Outbox::add(const FileToSend& file) {
  std::error_code error;
  fs::create_directories(folder_, error);
  OutboxEntry entry{file, next_number_, fs::file_size(file.path, error)};
  entry.path = path_of(next_number_, "_") + fs::path(file.path).filename().string();
  link_file_atomically(file.path, entry.path);
  try {
    write_file_atomically(path_of(entry.number, kNoteEnding), note_of(entry));
  } catch (...) {
    fs::remove(entry.path, error);
    throw;
  }
  ++next_number_;
  for (OutboxEntry& older : entries_) older.replaced |= older.is_for_same_target(entry);
  remove_done();
  entries_.push_back(entry);
  return make_room(entry.bytes);
}

/// Removes the oldest files until the next checkpoint has room twice: it is written beside the one that
/// it replaces, and that one may stay here. A file that has another name too takes no space.
std::vector<OutboxEntry> Outbox::make_room(uint64_t bytes) {
  std::error_code error;
  const uint64_t checkpoint =
      fs::file_size(fs::path(folder_).parent_path() / kCheckpointFile, error);
  if (!error) bytes = std::max(bytes, checkpoint);
  std::vector<OutboxEntry> removed;
  for (size_t i = 0; i + 1 < entries_.size();) {
    const std::optional<uint64_t> left = free_bytes_(folder_);
    if (!left || *left >= 2 * bytes) break;
    const bool takes_space = fs::hard_link_count(entries_[i].path, error) == 1;
    if (entries_[i].busy || error || !takes_space) {
      ++i;
      continue;
    }
    remove(entries_[i]);
    removed.push_back(entries_[i]);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return removed;
}

void Outbox::begin(const OutboxEntry& entry) {
  if (OutboxEntry* const known = find(entry.number)) known->busy = true;
}

bool Outbox::end(const OutboxEntry& entry, Outcome outcome) {
  OutboxEntry* const known = find(entry.number);
  if (known == nullptr) return false;
  known->busy = false;
  known->sent = outcome == Outcome::kSent;
  known->refused = outcome == Outcome::kRefused;
  remove_done();
  return find(entry.number) != nullptr;
}

std::string Outbox::notes(int64_t number) {
  const OutboxEntry* const entry = find(number);
  return entry == nullptr ? "" : entry->notes;
}

void Outbox::keep_notes(int64_t number, const std::string& text, bool on_disk) {
  OutboxEntry* const entry = find(number);
  if (entry == nullptr) return;
  entry->notes = text;
  if (!on_disk) return;
  try {
    const std::string path = path_of(number, kPartsEnding);
    text.empty() ? remove_file(path) : write_file_atomically(path, text);
  } catch (const Error&) {  // the upload is worth more than what a kill would leave of it
  }
}

Uploads::Uploads(const std::string& folder, Outbox::FreeBytes free_bytes)
    : outbox_(folder, std::move(free_bytes)) {}

Uploads::~Uploads() {
  end();
}

Uploads::Lane* Uploads::lane_of(const FileToSend& file) const {
  for (const auto& lane : lanes_) {
    if (lane->destination->name() == file.to) return lane.get();
  }
  return nullptr;
}

void Uploads::serve(std::shared_ptr<Destination> destination) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(std::make_unique<Lane>());
  lanes_.back()->destination = std::move(destination);
}

void Uploads::begin() {
  const std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (!lane->thread.joinable()) lane->thread = std::thread([this, &lane = *lane] { work(lane); });
  }
}

void Uploads::add(const FileToSend& file) {
  const std::lock_guard lock(mutex_);
  Lane* const lane = lane_of(file);
  D2_CHECK(lane != nullptr, "nobody sends to {}", file.to);
  lane->retry_at = {};  // at once, what has failed too
  for (const OutboxEntry& removed : outbox_.add(file)) {
    errors_.push_back(fmt::format(
        "{} {} for {} of {} was not sent and is removed: the disk of the outbox is nearly full",
        removed.kind,
        removed.target,
        removed.to,
        human_bytes(removed.bytes)));
  }
  wake_.notify_all();
}

std::vector<std::string> Uploads::take_errors() {
  const std::lock_guard lock(mutex_);
  return std::exchange(errors_, {});
}

std::vector<OutboxEntry> Uploads::waiting() const {
  const std::lock_guard lock(mutex_);
  return outbox_.waiting();
}

std::vector<OutboxEntry> Uploads::unserved() const {
  const std::lock_guard lock(mutex_);
  std::vector<OutboxEntry> entries = outbox_.waiting();
  std::erase_if(entries, [&](const OutboxEntry& entry) { return lane_of(entry) != nullptr; });
  return entries;
}

/// The oldest that was not tried, but no other file for a target whose upload is begun.
std::optional<OutboxEntry> Uploads::next(const Lane& lane) const {
  std::vector<OutboxEntry> begun;
  for (const OutboxEntry& entry : outbox_.waiting()) {
    if (lane_of(entry) != &lane) continue;
    const bool is_behind = std::any_of(begun.begin(), begun.end(), [&](const auto& older) {
      return older.is_for_same_target(entry);
    });
    if (!is_behind && !lane.failed.contains(entry.number)) return entry;
    if (!entry.notes.empty()) begun.push_back(entry);
  }
  return std::nullopt;
}

void Uploads::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!cancelled_) {
    if (!ending_ && Clock::now() >= lane.retry_at) lane.failed.clear();
    const std::optional<OutboxEntry> entry = next(lane);
    if (!entry) {
      if (ending_) break;
      wake_.wait_for(lock, kGlance);
      continue;
    }
    outbox_.begin(*entry);
    last_failed_ = !send(*lane.destination, *entry, lock);
    if (!last_failed_) {
      lane.pause_seconds = 0;
      continue;
    }
    if (lane.failed.empty()) {
      lane.pause_seconds = std::clamp(2 * lane.pause_seconds, kFirstPause, kLongestPause);
    }
    lane.failed.insert(entry->number);
    lane.retry_at =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(lane.pause_seconds * 1000));
  }
  lane.done = true;
  wake_.notify_all();
}

/// @param lock is free during the transfer
/// @return whether the entry is dealt with
bool Uploads::send(Destination& to, const OutboxEntry& entry, std::unique_lock<std::mutex>& lock) {
  UploadNotes notes = {.text = entry.notes, .store = [&](const std::string& text) {
                         const std::lock_guard own(mutex_);
                         outbox_.keep_notes(entry.number, text, to.stores_notes());
                       }};
  Outbox::Outcome outcome = Outbox::Outcome::kSent;
  std::string error;
  lock.unlock();
  try {
    to.send(
        entry, notes, {.ends_at_stop = false, .cancelled = [this] { return cancelled_.load(); }});
    log_info("track", "Saved {} to {}", entry.kind, to.place_of(entry.target));
  } catch (const std::exception& fault) {
    const auto* const network = dynamic_cast<const NetworkError*>(&fault);
    const bool passes = cancelled_ || (network != nullptr && may_pass(*network));
    outcome = passes ? Outbox::Outcome::kFailed : Outbox::Outcome::kRefused;
    error = fmt::format(
        "Error saving {} to {}: {}", entry.kind, to.place_of(entry.target), fault.what());
  }
  lock.lock();
  try {
    const bool waits = outbox_.end(entry, outcome);
    const std::string folder = std::filesystem::path(entry.path).parent_path().string();
    error += waits ? "\n  It waits in " + folder + "." : "\n  A newer one takes its place.";
  } catch (const std::exception& fault) {
    errors_.push_back(fmt::format("Error clearing the outbox: {}", fault.what()));
    return false;
  }
  if (outcome != Outbox::Outcome::kSent && !cancelled_) errors_.push_back(error);
  return outcome == Outbox::Outcome::kSent;
}

void Uploads::begin_end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const auto& lane : lanes_) lane->failed.clear();
  wake_.notify_all();
}

bool Uploads::is_done() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return lane->done || !lane->thread.joinable();
  });
}

bool Uploads::last_answer_was_fault() const {
  const std::lock_guard lock(mutex_);
  return last_failed_;
}

void Uploads::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  cancelled_ = true;
  wake_.notify_all();
  for (const auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
}

void wait_until_sent(const std::function<bool()>& is_sent,
                     const std::function<bool()>& is_stuck,
                     double most_seconds) {
  const Timer total;
  Timer trouble;
  bool told = false, told_stop = false;
  while (!is_sent() && total.seconds() < most_seconds) {
    if (!is_stuck() && stop_requested() == 0) trouble = Timer();
    if (trouble.seconds() >= kSecondsAfterTrouble) break;
    if (const int signal = stop_requested(); signal != 0 && !std::exchange(told_stop, true)) {
      log_info("track",
               "{}: sending ends in {:.0f} s",
               signal_name(signal),
               kSecondsAfterTrouble - trouble.seconds());
    }
    if (!told_stop && total.seconds() > 1 && !std::exchange(told, true)) {
      const bool ends = std::isfinite(most_seconds);
      log_info("track",
               "Sending what is left{}",
               ends ? fmt::format(", {:g} s at most while something moves", most_seconds) : "");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace dalle2
