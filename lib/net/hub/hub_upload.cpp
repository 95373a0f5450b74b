// SPDX-License-Identifier: MIT
// How a file comes into a repository: asked beforehand how it is kept (preupload), its bytes stored
// by Git LFS if it is large, then committed.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/hub/hub_api.h"

namespace dalle2 {
namespace {

constexpr const char* kLfsType = "application/vnd.git-lfs+json";
constexpr int kMostRounds = 4;        ///< of an LFS upload: its addresses may expire
constexpr int kMostCommits = 12;      ///< while others commit to the same branch
constexpr size_t kSampleBytes = 512;  ///< the hub judges a file by its beginning
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

/// A request of Git LFS with its content.
HttpCall lfs_call(HttpCall call, const Json& content) {
  for (const char* name : {"Accept: ", "Content-Type: "}) {
    call.headers.push_back(std::string(name) + kLfsType);
  }
  call.body = content.dump();
  return call;
}

/// The store's requests: their addresses are signed, and no token goes to them.
struct LfsUpload {
  const Prepared& file;
  const HubAccess& access;
  const HttpCall& batch;
  const HttpOptions& options;
  const UploadNotes& notes;
  std::string where;
  /// What the notes keep: whose file, the hub's actions, the parts that are there.
  Json state = {};

  void run() {
    for (int round = 1;; ++round) {
      try {
        send();
        return notes.keep("");
      } catch (const HttpStatusError& error) {
        // An address that has expired, or a store that got other bytes: new addresses mend both. An upload
        // that is gone may be whole, and its answer lost: then there are no actions.
        if (is_worth_retrying(error.status()) || error.status() == 401) throw;
        notes.keep("");
        if (round == kMostRounds) throw;
        log_warning("net", "{}\n  All parts are asked for again.", error.what());
      }
    }
  }

  /// With what the notes know of this file, else with what the hub says of it: no actions if it has these
  /// bytes already.
  void send() {
    state = parse_untrusted_object(notes.load());
    if (text_at(state, {"oid"}) != file.sha256) {
      state = {{"oid", file.sha256}, {"actions", ask()}, {"etags", Json::array()}};
    }
    const Json upload = json_at(state, {"actions", "upload"});
    const Json verify = json_at(state, {"actions", "verify"});
    if (!json_at(upload, {"header", "chunk_size"}).is_null()) {
      send_in_parts(upload);
    } else if (upload.is_object()) {
      HttpCall call = to_store("PUT", upload, text_at(upload, {"href"}));
      call.file = HttpFilePart{file.upload.local_path, 0, file.size};
      http_call(call, options);
    }
    if (!verify.is_object()) return;
    const std::string url = text_at(verify, {"href"});
    HttpCall call =
        lfs_call(to_store("POST", verify, url), {{"oid", file.sha256}, {"size", file.size}});
    if (!access.token.empty() && url.starts_with(access.endpoint + "/")) {
      call.headers.push_back("Authorization: Bearer " + access.token);
    }
    http_call(call, options);
  }

  /// The hub's actions; null if it has these bytes.
  Json ask() const {
    const Json asked = {{"operation", "upload"},
                        {"transfers", {"basic", "multipart"}},
                        {"objects", Json::array({{{"oid", file.sha256}, {"size", file.size}}})},
                        {"hash_algo", "sha256"}};
    const Json answer = json_of(http_call(lfs_call(batch, asked), options));
    const Json objects = json_at(answer, {"objects"});
    if (!objects.is_array() || objects.empty()) {
      throw NetworkError("{}: the hub says nothing of the file", where);
    }
    if (!json_at(objects[0], {"error"}).is_object()) return json_at(objects[0], {"actions"});
    throw NetworkError("{}: the hub refuses the file: {}",
                       where,
                       service_words(text_at(objects[0], {"error", "message"}), {access.token}));
  }

  /// @param action whose headers are sent
  HttpCall to_store(const std::string& method, const Json& action, const std::string& url) const {
    HttpCall call{.method = method, .url = url, .plain_http = access.plain_http};
    call.shown = fmt::format("{} (upload of {})", public_url(url), file.upload.path);
    call.explain = [](const HttpAnswer& answer) {
      if (answer.status() == 403) return "The address of the upload has expired, or is refused";
      if (answer.status() == 400) return "The store found other bytes than were announced";
      return status_advice(answer.status());
    };
    const Json headers = json_at(action, {"header"});
    for (const auto& [name, value] : headers.items()) {
      if (!name.empty() && value.is_string())
        call.headers.push_back(name + ": " + text_at(value, {}));
    }
    return call;
  }

  void send_in_parts(const Json& upload) {
    const Json header = json_at(upload, {"header"}), given = json_at(header, {"chunk_size"});
    const std::string text = text_at(given, {}, given.dump());
    const int64_t chunk = number_of_digits(text).value_or(0);
    const int64_t parts = chunk > 0 ? (file.size - 1) / chunk + 1 : 0;
    if (parts < 1 || parts > kMostLfsParts) {
      throw NetworkError(
          "{}: the hub asks for parts of {} bytes", where, service_words(text, {access.token}));
    }
    std::map<int64_t, std::string>
        urls;  // in the order of the parts: their numbers are the headers' names
    for (const auto& [name, value] : header.items()) {
      if (const auto number = number_of_digits(name)) urls[*number] = text_at(value, {});
    }
    if (static_cast<int64_t>(urls.size()) != parts) {
      throw NetworkError("{}: the hub gives {} addresses for {} parts", where, urls.size(), parts);
    }
    Json& etags = state["etags"];
    Json done = Json::array();
    for (int64_t part = 0; const auto& [name, url] : urls) {
      if (static_cast<int64_t>(etags.size()) < ++part) {
        HttpCall call = to_store("PUT", {}, url);
        const int64_t at = (part - 1) * chunk;
        call.file = HttpFilePart{file.upload.local_path, at, std::min(chunk, file.size - at)};
        // The tag as it came, with its quotes.
        etags.push_back(http_call(call, options).header("etag"));
        if (etags.back() == "") throw NetworkError("{}: part {} has no ETag", call.shown, part);
        notes.keep(state.dump());
      }
      done.push_back({{"partNumber", part}, {"etag", etags[done.size()]}});
    }
    HttpCall call = lfs_call(to_store("POST", {}, text_at(upload, {"href"})),
                             {{"oid", file.sha256}, {"parts", done}});
    call.slow_answer = true;
    http_call(call, options);
  }
};

/// Asks how the hub keeps the file.
Prepared prepare(const HubUpload& upload, HttpCall call, const HttpOptions& options) {
  Prepared file{.upload = upload, .sha256 = {}, .content = {}, .blob = {}};
  std::error_code error;
  file.size = static_cast<int64_t>(std::filesystem::file_size(upload.local_path, error));
  if (error) throw DataError("{}: cannot be read: {}", upload.local_path, error.message());
  const Json asked = {{"path", upload.path},
                      {"sample", base64(beginning_of(upload.local_path, kSampleBytes))},
                      {"size", file.size}};
  const std::string where = call.url;
  const Json answer = http_json(std::move(call), {{"files", Json::array({asked})}}, options);
  const Json files = json_at(answer, {"files"});
  if (!files.is_array() || files.empty()) {
    throw NetworkError("{}: the hub says nothing of the file", where);
  }
  const Json ignored = json_at(files[0], {"shouldIgnore"});
  if (ignored.is_boolean() && ignored.get<bool>()) {
    throw NetworkError(
        "{}: the repository's .gitignore leaves it out\n  Choose another target (/tracker/save), or "
        "change that file.",
        upload.path);
  }
  // Git LFS keeps no empty files.
  file.is_lfs = file.size > 0 && text_at(files[0], {"uploadMode"}) != "regular";
  if (file.is_lfs) {
    const HttpAttempts attempts({.url = where}, options);
    file.sha256 = sha256_of_file(upload.local_path, 0, {}, [&] { attempts.check(); });
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

}  // namespace

void HubRepository::upload(const HubUpload& upload, const UploadNotes& notes) const {
  if (upload.only_if_absent && find(upload.path)) return;
  const Prepared file = prepare(upload, call("POST", api("preupload")), options_);
  if (const auto there = find(upload.path); there && file.is_same(*there)) return;
  if (file.is_lfs) {
    const HttpCall batch = call("POST", "/" + place_.repo + ".git/info/lfs/objects/batch");
    LfsUpload{file, access_, batch, options_, notes, name() + "/" + upload.path}.run();
  }
  // A commit that seems to have failed may have been made, and others commit too: what the branch
  // holds is looked at before each attempt, and it fails if the branch has moved since.
  HttpOptions once = options_, patient = options_;
  once.attempts = 1;
  patient.attempts = std::max(options_.attempts, kMostCommits);
  const std::string path = api("commit");
  for (HttpAttempts attempts(call("POST", path), patient);;) {
    const HttpCall send = post(path, commit_lines(file, commit()), "application/x-ndjson");
    const std::optional<HubFile> there = find(upload.path);
    if (there && (upload.only_if_absent || file.is_same(*there))) return;
    HttpAnswer answer;
    std::optional<HttpFailure> failure = http_attempt(send, once, attempts, answer);
    if (!failure) {
      const Json made = parse_untrusted_object(answer.body);
      if (made.is_object() && (made.contains("commitOid") || made.contains("commitUrl"))) return;
      failure = {.reason = "the answer names no commit",
                 .advice = "Another server, or a proxy's login page, may answer there"};
    }
    const bool is_conflict = failure->status == 409 || failure->status == 412;  // another was first
    failure->is_final = failure->is_final && !is_conflict;
    attempts.after(*failure);
  }
}

}  // namespace dalle2
