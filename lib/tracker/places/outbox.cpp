// SPDX-License-Identifier: MIT
#include "tracker/places/outbox.h"

#include <algorithm>
#include <filesystem>
#include <set>
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

/// "00000012.json" -> 12.
int64_t number_of(const std::string& name) {
  return number_of_digits(name.substr(0, name.find_first_of("._"))).value_or(0);
}

std::string note_text(const Json& note, const char* key) {
  const auto entry = note.find(key);
  return entry != note.end() && entry->is_string() ? entry->get<std::string>() : "";
}

std::string note_of(const OutboxEntry& entry) {
  Json note;
  note["to"] = entry.to;
  note["target"] = entry.target;
  note["kind"] = entry.kind;
  note["file"] = fs::path(entry.path).filename().string();
  note["only_if_absent"] = entry.only_if_absent;
  note["saver"] = Json::parse(entry.saver);
  return note.dump(1) + "\n";
}

/// "00000012.json", "00000012_latest.pth", and both with ".part".
bool is_of_outbox(const std::string& name) {
  constexpr size_t kDigits = 8;
  const size_t end = name.find_first_of("._");
  return end != std::string::npos && end >= kDigits && number_of_digits(name.substr(0, end));
}

/// What a note says; an entry without a path if it is damaged, or its file is not there.
/// @throws DataError that cannot be known now
OutboxEntry read_note(const fs::path& path) {
  OutboxEntry entry;
  const Json note = parse_untrusted_object(read_file(path.string()));
  if (note.is_null()) return entry;
  entry.number = number_of(path.filename().string());
  entry.to = note_text(note, "to");
  entry.target = note_text(note, "target");
  entry.kind = note_text(note, "kind");
  const auto saver = note.find("saver");
  if (saver != note.end() && saver->is_object()) entry.saver = saver->dump();
  const auto absent = note.find("only_if_absent");
  entry.only_if_absent = absent != note.end() && absent->is_boolean() && absent->get<bool>();
  const std::string file = note_text(note, "file");
  // A name within the folder, of this number: nothing else is ever sent.
  const bool is_plain = file.find('/') == std::string::npos && number_of(file) == entry.number;
  const bool is_whole = entry.number > 0 && is_plain && !entry.to.empty() &&
                        !entry.target.empty() && !entry.saver.empty();
  const fs::path full = path.parent_path() / file;
  std::error_code error;
  const fs::file_type type = fs::symlink_status(full, error).type();
  if (type == fs::file_type::none) throw DataError("{}: {}", full.string(), error.message());
  if (!is_whole || type != fs::file_type::regular) return entry;
  entry.path = full.string();
  entry.bytes = fs::file_size(full, error);
  return entry;
}

bool same_place(const OutboxEntry& a, const OutboxEntry& b) {
  return a.to == b.to && a.target == b.target;
}

}  // namespace

Outbox::Outbox(std::string folder, FreeBytes free_bytes)
    : folder_(std::move(folder)), free_bytes_(std::move(free_bytes)) {
  read_folder();
}

bool Outbox::has_entries(const std::string& folder) {
  return !names_ending(folder, kNoteEnding).empty();
}

void Outbox::read_folder() {
  std::set<int64_t> known;  // numbers
  for (const std::string& name : names_ending(folder_, kNoteEnding)) {
    if (!is_of_outbox(name)) continue;
    next_number_ = std::max(next_number_, number_of(name) + 1);
    try {
      OutboxEntry entry = read_note(fs::path(folder_) / name);
      if (entry.path.empty()) continue;
      known.insert(entry.number);
      held_.push_back({std::move(entry)});
    } catch (const DataError& error) {
      log_warning("track", "{}\n  It is left as it is, and not sent.", error.what());
      known.insert(number_of(name));
    }
  }
  std::sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) {
    return a.entry.number < b.entry.number;
  });
  // A kill while a file was being sent leaves the one that has replaced it too.
  for (size_t i = 0; i < held_.size(); ++i) {
    held_[i].replaced = std::any_of(
        held_.begin() + static_cast<std::ptrdiff_t>(i) + 1, held_.end(), [&](const Held& later) {
          return same_place(held_[i].entry, later.entry);
        });
    if (held_[i].replaced) known.erase(held_[i].entry.number);
  }
  std::erase_if(held_, [](const Held& held) { return held.replaced; });
  // It leaves files without notes, notes without files, and unfinished parts. What has another name is
  // somebody else's.
  for (const std::string& name : names_in_folder(folder_)) {
    const fs::path path = fs::path(folder_) / name;
    std::error_code error;
    const bool is_left = is_of_outbox(name) && !known.contains(number_of(name));
    if (is_left && !fs::is_directory(fs::symlink_status(path, error))) remove_file(path.string());
  }
}

std::string Outbox::note_path(int64_t number) const {
  return (fs::path(folder_) / fmt::format("{:08}{}", number, kNoteEnding)).string();
}

/// The note first: a file without one is nothing.
void Outbox::remove(const OutboxEntry& entry) const {
  remove_file(note_path(entry.number));
  remove_file(entry.path);
}

std::vector<OutboxEntry> Outbox::add(OutboxEntry entry, const std::string& file) {
  const std::lock_guard lock(mutex_);
  std::error_code error;
  fs::create_directories(folder_, error);
  entry.number = next_number_;
  entry.path = (fs::path(folder_) /
                fmt::format("{:08}_{}", entry.number, fs::path(file).filename().string()))
                   .string();
  entry.bytes = fs::file_size(file, error);
  link_file_atomically(file, entry.path);
  try {
    write_file_atomically(note_path(entry.number), note_of(entry));
  } catch (...) {
    fs::remove(entry.path, error);
    throw;
  }
  ++next_number_;
  for (Held& held : held_) {
    if (!same_place(held.entry, entry)) continue;
    held.replaced = true;
    if (!held.busy) remove(held.entry);
  }
  std::erase_if(held_, [](const Held& held) { return held.replaced && !held.busy; });
  held_.push_back({entry});
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
  for (size_t i = 0; i + 1 < held_.size();) {
    const std::optional<uint64_t> left = free_bytes_(folder_);
    if (!left || *left >= 2 * bytes) break;
    const bool takes_space = fs::hard_link_count(held_[i].entry.path, error) == 1;
    if (held_[i].busy || error || !takes_space) {
      ++i;
      continue;
    }
    remove(held_[i].entry);
    removed.push_back(held_[i].entry);
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return removed;
}

std::vector<OutboxEntry> Outbox::waiting() const {
  const std::lock_guard lock(mutex_);
  std::vector<OutboxEntry> entries;
  for (const Held& held : held_) entries.push_back(held.entry);
  return entries;
}

void Outbox::begin(const OutboxEntry& entry) {
  const std::lock_guard lock(mutex_);
  for (Held& held : held_) held.busy |= held.entry.number == entry.number;
}

void Outbox::end(const OutboxEntry& entry, bool sent) {
  const std::lock_guard lock(mutex_);
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& candidate) {
    return candidate.entry.number == entry.number;
  });
  if (held == held_.end()) return;
  held->busy = false;
  if (!sent && !held->replaced) return;
  held_.erase(held);
  remove(entry);
}

}  // namespace dalle2
