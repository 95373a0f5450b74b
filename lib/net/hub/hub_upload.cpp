// SPDX-License-Identifier: MIT
// How a file comes into a repository: asked beforehand how it is kept (preupload), its bytes stored
// by Git LFS if it is large, then committed.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "net/digest.h"
#include "net/http_call.h"
#include "net/hub/hub_api.h"
#include "net/service_words.h"
#include "net/url.h"

namespace dalle2 {
namespace {

constexpr const char* kLfsType = "application/vnd.git-lfs+json";
constexpr int kMostRounds = 4;               ///< of an LFS upload: its addresses may expire
constexpr int kMostCommits = 12;             ///< while others commit to the same branch
constexpr double kLongestCommitPause = 300;  ///< seconds, if the server asks for it
constexpr int kMostFailures = 4;             ///< of commits, for any other reason
constexpr size_t kSampleBytes = 512;         ///< the hub judges a file by its beginning
constexpr int64_t kMostInCommit = int64_t{10} << 20;
constexpr int64_t kMostLfsParts = 100'000;

std::string beginning_of(const std::string& path, size_t size) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

/// Git's id of a file that lies in the commit itself.
std::string blob_id(const std::string& content) {
  const std::string blob = fmt::format("blob {}", content.size()) + std::string(1, '\0') + content;
  Hash hash(HashKind::kSha1);
  hash.add(blob.data(), blob.size());
  return hash.hex();
}

/// What is known of a file before it is sent.
struct Prepared {
  HubUpload upload;
  int64_t size = 0;
  bool is_lfs = false;
  std::string sha256;   // with is_lfs
  std::string content;  // without
  std::string blob;     // without

  bool is_same(const HubFile& file) const {
    return is_lfs ? file.sha256 == sha256 : file.sha256.empty() && file.blob_id == blob;
  }
};

const Json& at(const Json& object, const char* key, const std::string& where) {
  static const Json none;
  if (!object.is_object()) throw NetworkError("{}: the answer has no \"{}\"", where, key);
  const auto entry = object.find(key);
  return entry == object.end() ? none : *entry;
}

std::string text_at(const Json& object, const char* key, const std::string& where) {
  const Json& entry = at(object, key, where);
  return entry.is_string() ? entry.get<std::string>() : "";
}

/// The headers that an action asks for.
std::vector<std::string> headers_of(const Json& action) {
  std::vector<std::string> lines;
  const auto headers = action.find("header");
  if (headers == action.end() || !headers->is_object()) return lines;
  for (const auto& [name, value] : headers->items()) {
    if (value.is_string()) lines.push_back(name + ": " + value.get<std::string>());
  }
  return lines;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

/// The addresses of the parts in order: their numbers are the headers' names.
std::vector<std::string> part_urls(const Json& header, int64_t parts, const std::string& where) {
  std::vector<std::pair<int64_t, std::string>> numbered;
  for (const auto& [name, value] : header.items()) {
    if (is_number(name) && name.size() < 10 && value.is_string()) {
      numbered.emplace_back(std::stoll(name), value.get<std::string>());
    }
  }
  std::sort(numbered.begin(), numbered.end());
  std::vector<std::string> urls;
  for (auto& [number, url] : numbered) urls.push_back(std::move(url));
  if (static_cast<int64_t>(urls.size()) == parts) return urls;
  throw NetworkError("{}: the hub gives {} addresses for {} parts", where, urls.size(), parts);
}

/// The store's requests: their addresses are signed, and no token goes to them.
class LfsUpload {
 public:
  /// @param token of the hub, which no message shows
  LfsUpload(const Prepared& file,
            HttpCall batch,
            const HttpCallOptions& options,
            const UploadNotes& notes,
            std::string where,
            std::string token)
      : file_(file),
        batch_(std::move(batch)),
        options_(options),
        notes_(notes),
        where_(std::move(where)),
        token_(std::move(token)) {
    batch_.headers.push_back(std::string("Accept: ") + kLfsType);
    batch_.headers.push_back(std::string("Content-Type: ") + kLfsType);
  }

  void run() {
    for (int round = 1;; ++round) {
      try {
        send();
        return notes_.keep("");
      } catch (const HttpStatusError& error) {
        // An address that has expired, or a store that got other bytes: new addresses mend both. An upload
        // that is gone may be whole, and its answer lost: then there are no actions.
        if (is_worth_retrying(error.status()) || error.status() == 401) throw;
        notes_.keep("");
        if (round == kMostRounds) throw;
        log_warning("net", "{}\n  All parts are asked for again.", error.what());
      }
    }
  }

 private:
  /// With what the notes know of this file, else with what the hub says of it.
  void send() {
    state_ = parse_untrusted_object(notes_.load());
    if (!state_.is_object() || state_.value("oid", "") != file_.sha256) {
      state_ = {{"oid", file_.sha256}, {"actions", ask()}, {"etags", Json::array()}};
    }
    const Json actions = at(state_, "actions", where_);
    if (!actions.is_object()) return;  // these bytes are there already
    const Json& upload = at(actions, "upload", where_);
    if (upload.is_object()) {
      if (upload.contains("header") && upload["header"].is_object() &&
          upload["header"].contains("chunk_size")) {
        send_parts(upload);
      } else {
        send_whole(upload);
      }
    }
    const Json& verify = at(actions, "verify", where_);
    if (verify.is_object()) check(verify);
  }

  /// The hub's actions; null if it has these bytes.
  Json ask() const {
    const Json asked = {{"operation", "upload"},
                        {"transfers", {"basic", "multipart"}},
                        {"objects", Json::array({{{"oid", file_.sha256}, {"size", file_.size}}})},
                        {"hash_algo", "sha256"}};
    HttpCall call = batch_;
    call.body = asked.dump();
    const Json answer = json_of(http_call(call, options_));
    const Json& objects = at(answer, "objects", where_);
    if (!objects.is_array() || objects.empty()) {
      throw NetworkError("{}: the hub says nothing of the file", where_);
    }
    const Json& error = at(objects[0], "error", where_);
    if (error.is_object()) {
      throw NetworkError("{}: the hub refuses the file: {}",
                         where_,
                         service_words(text_at(error, "message", where_), {token_}));
    }
    return at(objects[0], "actions", where_);
  }

  HttpCall to_store(const std::string& method, const Json& action, const std::string& url) const {
    HttpCall call;
    call.method = method;
    call.url = url;
    call.plain_http = batch_.plain_http;
    call.shown = fmt::format("{} (upload of {})", public_url(url), file_.upload.path);
    call.explain = [](const HttpAnswer& answer) {
      if (answer.status() == 403) return "The address of the upload has expired, or is refused";
      if (answer.status() == 400) return "The store found other bytes than were announced";
      return status_advice(answer.status());
    };
    if (action.is_object()) call.headers = headers_of(action);
    return call;
  }

  void send_whole(const Json& upload) const {
    HttpCall call = to_store("PUT", upload, text_at(upload, "href", where_));
    call.file = HttpFilePart{file_.upload.local_path, 0, file_.size};
    http_call(call, options_);
  }

  void send_parts(const Json& upload) {
    const Json& header = upload["header"];
    const Json& given = header["chunk_size"];
    const std::string text = given.is_string() ? given.get<std::string>() : given.dump();
    const int64_t chunk = is_number(text) && text.size() < 18 ? std::stoll(text) : 0;
    const int64_t parts = chunk > 0 ? (file_.size + chunk - 1) / chunk : 0;
    if (parts < 1 || parts > kMostLfsParts) {
      throw NetworkError(
          "{}: the hub asks for parts of {} bytes", where_, service_words(text, {token_}));
    }
    const std::vector<std::string> urls = part_urls(header, parts, where_);
    Json& etags = state_["etags"];  // of the parts that are there
    for (auto part = static_cast<int64_t>(etags.size()); part < parts; ++part) {
      HttpCall call = to_store("PUT", {}, urls[static_cast<size_t>(part)]);
      const int64_t offset = part * chunk;
      call.file =
          HttpFilePart{file_.upload.local_path, offset, std::min(chunk, file_.size - offset)};
      // The tag as it came, with its quotes.
      const std::string etag = http_call(call, options_).header("etag");
      if (etag.empty()) throw NetworkError("{}: part {} has no ETag", call.shown, part + 1);
      etags.push_back(etag);
      notes_.keep(state_.dump());
    }
    Json done = Json::array();
    for (const Json& etag : etags) {
      done.push_back({{"partNumber", done.size() + 1}, {"etag", etag}});
    }
    HttpCall call = to_store("POST", {}, text_at(upload, "href", where_));
    call.headers = {std::string("Accept: ") + kLfsType, std::string("Content-Type: ") + kLfsType};
    call.body = Json{{"oid", file_.sha256}, {"parts", done}}.dump();
    call.slow_answer = true;
    http_call(call, options_);
  }

  /// The token goes to the hub itself only.
  void check(const Json& verify) const {
    const std::string url = text_at(verify, "href", where_);
    HttpCall call = to_store("POST", verify, url);
    const std::string endpoint =
        batch_.url.substr(0, batch_.url.find('/', batch_.url.find("//") + 2));
    const bool is_hub = url.starts_with(endpoint + "/");
    const auto& lines = batch_.headers;  // the last two are no secrets
    call.headers.insert(call.headers.end(), is_hub ? lines.begin() : lines.end() - 2, lines.end());
    call.body = Json{{"oid", file_.sha256}, {"size", file_.size}}.dump();
    http_call(call, options_);
  }

  const Prepared& file_;
  HttpCall batch_;
  const HttpCallOptions& options_;
  const UploadNotes& notes_;
  std::string where_, token_;
  Json state_;  // what the notes keep: whose file, the hub's actions, the parts that are there
};

/// Asks how the hub keeps the file.
Prepared prepare(const HubUpload& upload, HttpCall call, const HttpCallOptions& options) {
  Prepared file{.upload = upload, .sha256 = {}, .content = {}, .blob = {}};
  std::error_code error;
  file.size = static_cast<int64_t>(std::filesystem::file_size(upload.local_path, error));
  if (error) throw DataError("{}: cannot be read: {}", upload.local_path, error.message());
  const Json asked = {{"path", upload.path},
                      {"sample", base64(beginning_of(upload.local_path, kSampleBytes))},
                      {"size", file.size}};
  const std::string where = call.url;
  const Json answer = http_json(std::move(call), {{"files", Json::array({asked})}}, options);
  const Json& files = at(answer, "files", where);
  if (!files.is_array() || files.empty()) {
    throw NetworkError("{}: the hub says nothing of the file", where);
  }
  const Json& ignored = at(files[0], "shouldIgnore", where);
  if (ignored.is_boolean() && ignored.get<bool>()) {
    throw NetworkError(
        "{}: the repository's .gitignore leaves it out\n  Choose another target (/tracker/save), or "
        "change that file.",
        upload.path);
  }
  // Git LFS keeps no empty files.
  file.is_lfs = file.size > 0 && text_at(files[0], "uploadMode", where) != "regular";
  if (file.is_lfs) {
    file.sha256 = sha256_of_file(upload.local_path, 0, {}, [&] {
      if (options.cancelled && options.cancelled()) throw NetworkError("{}: cancelled", where);
    });
    return file;
  }
  if (file.size > kMostInCommit) {
    throw NetworkError(
        "{}: the hub wants {} bytes within a commit, without Git LFS\n  Add its ending "
        "to .gitattributes of the repository.",
        upload.path,
        file.size);
  }
  file.content = beginning_of(upload.local_path, static_cast<size_t>(file.size));
  file.blob = blob_id(file.content);
  return file;
}

/// One JSON object a line.
std::string commit_lines(const Prepared& file, const std::string& parent) {
  Json header = {{"summary", file.upload.summary}, {"description", ""}};
  if (!parent.empty()) header["parentCommit"] = parent;
  Json content = {{"path", file.upload.path}};
  if (file.is_lfs) {
    content["algo"] = "sha256";
    content["oid"] = file.sha256;
    content["size"] = file.size;
  } else {
    content["content"] = base64(file.content);
    content["encoding"] = "base64";
  }
  return Json{{"key", "header"}, {"value", header}}.dump() + "\n" +
         Json{{"key", file.is_lfs ? "lfsFile" : "file"}, {"value", content}}.dump() + "\n";
}

/// Another commit was first.
bool is_conflict(const NetworkError& error) {
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  return refused != nullptr && (refused->status() == 409 || refused->status() == 412);
}

}  // namespace

void HubRepository::upload(const HubUpload& upload,
                           const HttpCallOptions& options,
                           const UploadNotes* notes) const {
  if (upload.only_if_absent && find(upload.path, options)) return;
  const std::string branch = uri_encode(revision_);
  const Prepared file = prepare(upload, call("POST", api("/preupload/" + branch)), options);
  if (const auto there = find(upload.path, options); there && file.is_same(*there)) return;
  if (file.is_lfs) {
    std::string kept;
    const UploadNotes own{.load = [&] { return kept; },
                          .keep = [&](const std::string& text) { kept = text; }};
    LfsUpload(file,
              call("POST", "/" + repo_ + ".git/info/lfs/objects/batch"),
              options,
              notes == nullptr ? own : *notes,
              name() + "/" + upload.path,
              access_.token)
        .run();
  }
  // A commit that seems to have failed may have been made, and others commit too: what the branch
  // holds is looked at before each attempt, and it fails if the branch has moved since.
  HttpCallOptions once = options;
  once.attempts = 1;
  std::minstd_rand random(std::random_device{}());
  for (int attempt = 1, failures = 0;; ++attempt) {
    const std::string parent = commit(options);
    const std::optional<HubFile> there = find(upload.path, options);
    if (there && (upload.only_if_absent || file.is_same(*there))) return;
    HttpCall commit = call("POST", api("/commit/" + branch));
    commit.headers.emplace_back("Content-Type: application/x-ndjson");
    commit.body = commit_lines(file, parent);
    commit.accepted = {429, 503};  // answers that say when to come back
    std::string fault;
    double asked_seconds = 0;
    try {
      const HttpAnswer answer = http_call(commit, once);
      const long status = answer.status();
      if (status < 300) {
        const Json made = parse_untrusted_object(answer.body);
        if (made.is_object() && (made.contains("commitOid") || made.contains("commitUrl"))) return;
        throw UnreachableError(
            "{}: the answer (status {}) names no commit: does another server, or "
            "a proxy's login page, answer there?",
            answer.shown,
            status);
      }
      asked_seconds = std::min(answer.head.retry_after.value_or(0), kLongestCommitPause);
      throw HttpStatusError(status,
                            "{}: the server answers with status {}.\n  {}.",
                            answer.shown,
                            status,
                            status_advice(status));
    } catch (const NetworkError& error) {
      const bool again = is_conflict(error) || (may_pass(error) && ++failures < kMostFailures);
      if (!again || attempt == kMostCommits) throw;
      fault = error.what();
    }
    const double spread = 0.5 + static_cast<double>(random() % 1000) / 1000;
    const double growing = std::min(0.25 * std::pow(2.0, attempt - 1), 8.0) * spread;
    const double pause = std::max(growing, asked_seconds);
    log_warning("net", "{}\n  The commit is tried again in {:.1f} s.", fault, pause);
    wait_seconds(pause, [&] {
      if (options.cancelled && options.cancelled()) throw NetworkError("{}: cancelled", name());
    });
  }
}

}  // namespace dalle2
