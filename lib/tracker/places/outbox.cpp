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

/// What a note says; an entry without a path if it is damaged, or its file is not there.
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
  if (!is_whole || fs::symlink_status(full, error).type() != fs::file_type::regular) return entry;
  entry.path = full.string();
  entry.bytes = fs::file_size(full, error);
  return entry;
}

bool same_place(const OutboxEntry& a, const OutboxEntry& b) {
  return a.to == b.to && a.target == b.target;
}

}  // namespace

Outbox::Outbox(std::string folder) : folder_(std::move(folder)) {
  read_folder();
}

bool Outbox::has_entries(const std::string& folder) {
  return !names_ending(folder, kNoteEnding).empty();
}

void Outbox::read_folder() {
  std::set<std::string> known;
  for (const std::string& name : names_ending(folder_, kNoteEnding)) {
    OutboxEntry entry = read_note(fs::path(folder_) / name);
    next_number_ = std::max(next_number_, number_of(name) + 1);
    if (entry.path.empty()) continue;
    known.insert(name);
    known.insert(fs::path(entry.path).filename().string());
    held_.push_back({std::move(entry)});
  }
  std::sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) {
    return a.entry.number < b.entry.number;
  });
  // A killed process leaves files without notes, notes without files, and unfinished parts.
  for (const std::string& name : names_in_folder(folder_)) {
    if (!known.contains(name)) remove_file((fs::path(folder_) / name).string());
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

/// A later save needs as much space again, and so does the file that it replaces.
std::vector<OutboxEntry> Outbox::make_room(uint64_t bytes) {
  std::vector<OutboxEntry> removed;
  for (size_t i = 0; i + 1 < held_.size();) {
    std::error_code error;
    const fs::space_info space = fs::space(folder_, error);
    if (error || space.available >= 3 * bytes) break;
    if (held_[i].busy) {
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
