// SPDX-License-Identifier: MIT
#include "tracker/places/uploads.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "tracker/run_folder/run_files.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNoteEnding = ".json";
constexpr const char* kPartsEnding = ".parts";  ///< UploadNotes

/// "00000012.json" -> 12.
int64_t number_of(const std::string& name) {
  return number_of_digits(name.substr(0, name.find_first_of("._"))).value_or(0);
}

/// "00000012.json", "00000012.parts", "00000012_latest.pth", and all with ".part".
bool is_of_outbox(const std::string& name) {
  constexpr size_t kDigits = 8;
  const size_t end = name.find_first_of("._");
  return end != std::string::npos && end >= kDigits && number_of_digits(name.substr(0, end));
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
  entry.number = number_of(path.filename().string());
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

}  // namespace

Outbox::Outbox(std::string folder, FreeBytes free_bytes)
    : folder_(std::move(folder)), free_bytes_(std::move(free_bytes)) {
  read_folder();
}

void Outbox::read_folder() {
  std::vector<int64_t> left;  // numbers of what is neither sent nor removed
  for (const std::string& name : names_ending(folder_, kNoteEnding)) {
    if (!is_of_outbox(name)) continue;
    const int64_t number = number_of(name);
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
  remove_replaced();
  // It leaves files without notes, notes without files, and unfinished parts. What has another name is
  // somebody else's.
  for (const OutboxEntry& entry : entries_) left.push_back(entry.number);
  for (const std::string& name : names_in_folder(folder_)) {
    const fs::path path = fs::path(folder_) / name;
    std::error_code error;
    const bool is_known = std::find(left.begin(), left.end(), number_of(name)) != left.end() &&
                          !name.ends_with(".part");
    if (!is_of_outbox(name) || is_known) continue;
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
void Outbox::remove(const OutboxEntry& entry, bool is_sent) {
  remove_file(path_of(entry.number, kNoteEnding));
  remove_file(path_of(entry.number, kPartsEnding));
  remove_file(entry.path);
  if (!is_sent && !entry.notes.empty()) dropped_.push_back(entry);
}

void Outbox::remove_replaced() {
  for (const OutboxEntry& entry : entries_) {
    if (entry.may_go()) remove(entry, /*is_sent=*/false);
  }
  std::erase_if(entries_, [](const OutboxEntry& entry) { return entry.may_go(); });
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
  remove_replaced();
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
    remove(entries_[i], /*is_sent=*/false);
    removed.push_back(entries_[i]);
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return removed;
}

void Outbox::begin(const OutboxEntry& entry) {
  if (OutboxEntry* const known = find(entry.number)) known->busy = true;
}

bool Outbox::end(const OutboxEntry& entry, Outcome outcome) {
  const int64_t number = entry.number;
  OutboxEntry* const known = find(number);
  if (known == nullptr) return false;
  known->busy = false;
  known->refused = outcome == Outcome::kRefused;
  if (outcome != Outcome::kSent) {
    remove_replaced();
    return find(number) != nullptr;
  }
  const OutboxEntry sent = *known;
  entries_.erase(entries_.begin() + (known - entries_.data()));
  remove(sent, /*is_sent=*/true);
  return false;
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

std::vector<OutboxEntry> Outbox::take_dropped() {
  return std::exchange(dropped_, {});
}

}  // namespace dalle2
