// SPDX-License-Identifier: MIT
#include "tracker/places/uploads.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/timer.h"
#include "base/untrusted_json.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"
#include "net/url.h"
#include "net/wandb_api.h"
#include "tracker/places/remote_file.h"
#include "tracker/run_folder/run_record.h"

namespace dalle2 {
namespace {

// The services that take files.

class HubDestination : public Destination {
 public:
  explicit HubDestination(const HuggingfaceSaveConfig& config)
      : is_private_(config.is_private),
        repository_(find_hub_access(config.token_path, config.allow_plain_http),
                    {.repo = config.huggingface_repo, .revision = config.revision}) {}

  std::string name() const override { return repository_.name(); }
  void check_access(const HttpOptions& options) override {
    repository_.set_options(options);
    repository_.check_token();
  }
  void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) override {
    repository_.set_options(options);
    if (!made_) repository_.create(is_private_);
    made_ = true;
    repository_.upload({.local_path = file.path,
                        .path = file.target,
                        .summary = "Upload " + file.kind + " " + file.target,
                        .only_if_absent = file.only_if_absent},
                       notes);
  }

 private:
  bool is_private_;
  bool made_ = false;  // the repository
  HubRepository repository_;
};

/// PUT of whole files below a folder.
class UrlDestination : public Destination {
 public:
  explicit UrlDestination(const UrlSaveConfig& config) : plain_http_(config.allow_plain_http) {
    const size_t query = std::min(config.url.find('?'), config.url.size());
    folder_ = without_slash(config.url.substr(0, query));
    query_ = config.url.substr(query);
    shown_ = without_slash(public_url(config.url));
    if (public_url(folder_) != shown_) {
      throw ConfigError(
          "/tracker/save/url: {}: a \"?\" in a login ends the address.\n  Write it as %3F, or put the "
          "login into ~/.netrc.",
          shown_);
    }
    check_plain_http(folder_, plain_http_, "/tracker/save/url: " + shown_);
  }

  /// The folder without its secrets takes nothing that was for the one with them.
  std::string name() const override {
    return shown_ + (shown_ == folder_ ? "" : " (with a login)") +
           (query_.empty() ? "" : " (with a query)");
  }
  std::string place_of(const std::string& target) const override { return shown_ + "/" + target; }

  /// A server of files need not know other requests, and a presigned address is good for one.
  void check_access(const HttpOptions& options) override {
    if (!query_.empty()) return;
    HttpCall look = call("OPTIONS", folder_ + "/");
    look.accepted = {400, 403, 404, 405, 409, 501};
    http_call(look, options);
  }

  void send(const FileToSend& file, UploadNotes& /*notes*/, const HttpOptions& options) override {
    const std::string address = folder_ + "/" + uri_encode(file.target, /*keep_slash=*/true);
    HttpCall put = call("PUT", address + query_);
    put.file = HttpFilePart{file.path};
    put.headers.emplace_back("Content-Type: application/octet-stream");
    if (query_.empty()) make_folders(address, options);
    http_call(put, options);
  }

 private:
  HttpCall call(const std::string& method, const std::string& url) const {
    HttpCall call{.method = method, .url = url};
    call.plain_http = plain_http_;
    call.netrc = true;
    call.explain = advice_for(
        {{401, "The server asks for a login: write one into ~/.netrc (chmod 600)"},
         {403, "The login may not write there, or the signature of the address has expired"},
         {405, "The server takes no files at this address"}});
    return call;
  }
  /// Those above a file, one by one: WebDAV makes none by itself, and some servers say so when they have
  /// the whole file. What cannot be made may be there, and servers that know only PUT refuse: the PUT tells.
  void make_folders(const std::string& address, const HttpOptions& options) const {
    const size_t path = address.find('/', address.find("://") + 3);
    for (size_t at = address.find('/', path + 1); at != std::string::npos;
         at = address.find('/', at + 1)) {
      HttpCall make = call("MKCOL", address.substr(0, at + 1));
      make.accepted = {400, 401, 403, 404, 405, 409, 410, 501};
      try {
        http_call(make, options);
      } catch (const HttpStatusError& refused) {
        if (refused.status() == 429) throw;
      }
    }
  }

  std::string folder_, query_;  // query_: with its "?", behind each address
  std::string shown_;           // the folder without what is secret
  bool plain_http_;
};

class S3Destination : public Destination {
 public:
  explicit S3Destination(const S3SaveConfig& config)
      : url_(without_slash(config.url)), plain_http_(config.allow_plain_http) {
    const std::string endpoint = find_s3_access().endpoint;
    name_ = url_ + (endpoint.empty() ? "" : " (at " + public_url(endpoint) + ")");
  }

  std::string name() const override { return name_; }
  std::string place_of(const std::string& target) const override { return url_ + "/" + target; }
  void check_access(const HttpOptions& options) override {
    s3_check_bucket(url_, {.http = options, .plain_http = plain_http_});
  }
  void send(const FileToSend& file, UploadNotes& notes, const HttpOptions& options) override {
    s3_upload(
        file.path, url_ + "/" + file.target, notes, {.http = options, .plain_http = plain_http_});
  }
  bool stores_notes() const override { return true; }

 private:
  std::string url_, name_;
  bool plain_http_;
};

/// A run; without wandb_run_path it can be asked, and nothing can be sent yet.
class WandbDestination : public Destination {
 public:
  explicit WandbDestination(const WandbSaveConfig& config) : access_(find_wandb_access()) {
    if (config.wandb_run_path) run_ = parse_wandb_run_path(*config.wandb_run_path);
  }

  std::string name() const override {
    return run_ ? wandb_page(access_, *run_) : public_url(access_.base_url);
  }
  std::string place_of(const std::string& target) const override {
    return name() + "/files/" + target;
  }
  void check_access(const HttpOptions& options) override {
    if (access_.mode != WandbMode::kOnline) {
      throw NetworkError("{}: nothing can be saved there: {}.\n  {} Or choose another saver.",
                         name(),
                         access_.mode_reason,
                         kWandbLogin);
    }
    WandbApi(access_, options).viewer();
  }
  void send(const FileToSend& file, UploadNotes& /*notes*/, const HttpOptions& options) override {
    D2_CHECK(run_.has_value(), "the run of a saver is known when the loggers have begun");
    WandbApi(access_, options).upload(*run_, {{.name = file.target, .path = file.path}});
  }

 private:
  WandbAccess access_;
  std::optional<WandbRunPath> run_;
};

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
  const fs::path full = path.parent_path() / file;
  const fs::path parts = fs::path(path).replace_extension(kPartsEnding);
  std::error_code error;
  const fs::file_type type = fs::symlink_status(full, error).type();
  if (type == fs::file_type::none) throw DataError("{}: {}", full.string(), error.message());
  if (!is_plain || type != fs::file_type::regular) return {};
  entry.path = full.string();
  entry.bytes = fs::file_size(full, error);
  if (fs::exists(parts, error)) entry.notes = read_file(parts.string());
  return entry;
}

constexpr double kFirstPause = 30, kLongestPause = 600;  // seconds
constexpr auto kGlance = std::chrono::seconds(1);
constexpr double kSecondsAfterTrouble = 10;  // at the end

}  // namespace

std::unique_ptr<Destination> make_destination(const SaveConfig& config) {
  if (const auto* hub = std::get_if<HuggingfaceSaveConfig>(&config))
    return std::make_unique<HubDestination>(*hub);
  if (const auto* url = std::get_if<UrlSaveConfig>(&config))
    return std::make_unique<UrlDestination>(*url);
  if (const auto* s3 = std::get_if<S3SaveConfig>(&config))
    return std::make_unique<S3Destination>(*s3);
  if (const auto* wandb = std::get_if<WandbSaveConfig>(&config))
    return std::make_unique<WandbDestination>(*wandb);
  return nullptr;
}

Uploads::Uploads(std::string folder,
                 const std::vector<std::shared_ptr<Destination>>& destinations,
                 OnError on_error,
                 FreeBytes free_bytes)
    : folder_(std::move(folder)),
      on_error_(std::move(on_error)),
      free_bytes_(std::move(free_bytes)) {
  read_folder();
  for (const auto& destination : destinations) {
    lanes_.push_back(std::make_unique<Lane>());
    lanes_.back()->destination = destination;
  }
  try {
    for (const auto& lane : lanes_)
      lane->thread = std::thread([this, &lane = *lane] { work(lane); });
  } catch (...) {
    end();
    throw;
  }
}

void Uploads::read_folder() {
  std::set<int64_t> unreadable;
  for (const std::string& name : names_ending(folder_, kNoteEnding)) {
    if (!number_of(name)) continue;
    next_number_ = std::max(next_number_, *number_of(name) + 1);
    try {
      OutboxEntry entry = read_note(fs::path(folder_) / name);
      if (!entry.path.empty()) entries_.push_back(std::move(entry));
    } catch (const DataError& error) {
      log_warning("track", "{}\n  It stays there, and is not sent.", error.what());
      unreadable.insert(*number_of(name));
    }
  }
  remove_replaced();  // a kill while a file was being sent leaves it beside the newer one
  // It leaves files without notes, notes without files, unfinished parts. Other names are somebody else's.
  for (const std::string& name : names_in_folder(folder_)) {
    const std::optional<int64_t> number = number_of(name);
    if (!number || unreadable.contains(*number)) continue;
    if (find(*number) != nullptr && !name.ends_with(".part")) continue;
    const fs::path path = fs::path(folder_) / name;
    std::error_code error;
    if (!fs::is_directory(fs::symlink_status(path, error))) remove_file(path.string());
  }
}

std::string Uploads::path_of(int64_t number, const char* ending) const {
  return (fs::path(folder_) / fmt::format("{:08}{}", number, ending)).string();
}

OutboxEntry* Uploads::find(int64_t number) {
  const auto found = std::ranges::find_if(
      entries_, [&](const OutboxEntry& entry) { return entry.number == number; });
  return found == entries_.end() ? nullptr : &*found;
}

/// The note first: a file without one is nothing.
void Uploads::remove(size_t index) {
  const OutboxEntry entry = std::move(entries_[index]);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  remove_file(path_of(entry.number, kNoteEnding));
  remove_file(path_of(entry.number, kPartsEnding));
  remove_file(entry.path);
}

/// A newer file for the same target replaces what is not begun.
void Uploads::remove_replaced() {
  for (size_t i = 0; i < entries_.size();) {
    const auto newer =
        std::find_if(entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     entries_.end(),
                     [&](const auto& other) { return other.is_for_same_target(entries_[i]); });
    newer == entries_.end() || entries_[i].is_begun() ? void(++i) : remove(i);
  }
}

/// Removes the oldest files until the next checkpoint has room twice: it is written beside the one that
/// it replaces, and that one may stay here. A file that has another name too takes no space.
void Uploads::make_room(uint64_t bytes) {
  std::error_code error;
  const uint64_t checkpoint =
      fs::file_size(fs::path(folder_).parent_path() / kCheckpointFile, error);
  if (!error) bytes = std::max(bytes, checkpoint);
  for (size_t i = 0; i + 1 < entries_.size();) {
    const std::optional<uint64_t> left = free_bytes_(folder_);
    if (!left || *left >= 2 * bytes) break;
    const OutboxEntry& oldest = entries_[i];
    const bool takes_space = fs::hard_link_count(oldest.path, error) == 1;
    if (oldest.busy || error || !takes_space) {
      ++i;
      continue;
    }
    on_error_(fmt::format(
        "{} {} for {} of {} was not sent and is removed: the disk of the outbox is nearly full",
        oldest.kind,
        oldest.target,
        oldest.to,
        human_bytes(oldest.bytes)));
    remove(i);
  }
}

void Uploads::keep_notes(int64_t number, const std::string& text, bool on_disk) {
  find(number)->notes = text;
  if (!on_disk) return;
  try {
    const std::string path = path_of(number, kPartsEnding);
    text.empty() ? remove_file(path) : write_file_atomically(path, text);
  } catch (const Error&) {  // the upload is worth more than what a kill would leave of it
  }
}

Uploads::Lane* Uploads::lane_of(const FileToSend& file) const {
  for (const auto& lane : lanes_) {
    if (lane->destination->name() == file.to) return lane.get();
  }
  return nullptr;
}

void Uploads::add(const FileToSend& file) {
  const std::lock_guard lock(mutex_);
  Lane* const lane = lane_of(file);
  D2_CHECK(lane != nullptr, "nobody sends to {}", file.to);
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
  entries_.push_back(entry);
  remove_replaced();
  make_room(entry.bytes);
  lane->retry_at = {};  // at once, what has failed too
  wake_.notify_all();
}

std::vector<OutboxEntry> Uploads::waiting() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<OutboxEntry> Uploads::unserved() const {
  const std::lock_guard lock(mutex_);
  std::vector<OutboxEntry> entries = entries_;
  std::erase_if(entries, [&](const OutboxEntry& entry) { return lane_of(entry) != nullptr; });
  return entries;
}

/// The oldest that was not tried, and for a target none before an older one that is begun.
OutboxEntry* Uploads::next(const Lane& lane) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const bool is_behind = std::any_of(entries_.begin(), entry, [&](const auto& older) {
      return older.is_for_same_target(*entry);
    });
    if (lane_of(*entry) == &lane && !is_behind && !lane.failed.contains(entry->number))
      return &*entry;
  }
  return nullptr;
}

void Uploads::work(Lane& lane) {
  std::unique_lock lock(mutex_);
  while (!cancelled_) {
    if (!ending_ && Clock::now() >= lane.retry_at) lane.failed.clear();
    OutboxEntry* const found = ending_ || Clock::now() >= lane.busy_until ? next(lane) : nullptr;
    if (found == nullptr) {
      if (ending_) break;
      wake_.wait_for(lock, kGlance);
      continue;
    }
    found->busy = true;
    const OutboxEntry entry = *found;
    lane.last_failed = !send(lane, entry, lock);
    if (!lane.last_failed) {
      lane.pause_seconds = 0;
      continue;
    }
    if (lane.failed.empty()) {
      lane.pause_seconds = std::clamp(2 * lane.pause_seconds, kFirstPause, kLongestPause);
    }
    lane.failed.insert(entry.number);
    lane.retry_at =
        Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(lane.pause_seconds * 1000));
  }
  lane.done = true;
  wake_.notify_all();
}

/// @param lock is free during the transfer
/// @return whether the entry is dealt with
bool Uploads::send(Lane& lane, const OutboxEntry& entry, std::unique_lock<std::mutex>& lock) {
  Destination& to = *lane.destination;
  UploadNotes notes = {.text = entry.notes, .store = [&](const std::string& text) {
                         const std::lock_guard own(mutex_);
                         keep_notes(entry.number, text, to.stores_notes());
                         if (!text.empty()) lane.last_failed = false;  // a part has arrived
                       }};
  bool is_sent = false, is_refused = false;
  std::string error;
  lock.unlock();
  try {
    to.send(entry,
            notes,
            {.ends_at_stop = false,
             .cancelled = [this] { return cancelled_.load(); },
             .on_fault = [&lane] { lane.last_failed = true; }});
    is_sent = true;
    // Whether there was such a file already is not known here.
    if (!entry.only_if_absent)
      log_info("track", "Saved {} to {}", entry.kind, to.place_of(entry.target));
  } catch (const std::exception& fault) {
    const auto* const network = dynamic_cast<const NetworkError*>(&fault);
    if (const auto* status = dynamic_cast<const HttpStatusError*>(&fault))
      lane.busy_until =
          Clock::now() + std::chrono::seconds(std::lround(status->retry_after().value_or(0)));
    is_refused = !cancelled_ && (network == nullptr || !may_pass(*network));
    error = fmt::format(
        "Error saving {} to {}: {}", entry.kind, to.place_of(entry.target), fault.what());
  }
  lock.lock();
  try {
    OutboxEntry& known = *find(entry.number);  // what is busy stays
    known.busy = false;
    known.refused = is_refused;
    if (is_sent) remove(static_cast<size_t>(&known - entries_.data()));
    remove_replaced();
    const bool waits = find(entry.number) != nullptr;
    error += waits ? "\n  It waits in " + folder_ + "." : "\n  A newer one takes its place.";
  } catch (const std::exception& fault) {
    on_error_(fmt::format("Error clearing the outbox: {}", fault.what()));
    return false;
  }
  if (!is_sent && !cancelled_) on_error_(error);
  return is_sent;
}

void Uploads::begin_end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  for (const auto& lane : lanes_) {
    lane->failed.clear();
    lane->last_failed = false;
  }
  wake_.notify_all();
}

bool Uploads::is_done() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(lanes_, [](const auto& lane) { return lane->done; });
}

bool Uploads::last_answer_was_fault() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(lanes_,
                             [](const auto& lane) { return lane->done || lane->last_failed; });
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
