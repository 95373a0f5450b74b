// SPDX-License-Identifier: MIT
#include "net/hub/hub_api.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/s3/s3.h"  // limits of listings
#include "net/url.h"

namespace dalle2 {
namespace {

constexpr const char* kScheme = "hf://";
constexpr const char* kDatasets = "datasets/";

HubRepository repository_of(const HubUrl& url, const HttpOptions& options = {}) {
  return {find_hub_access({}, /*plain_http=*/false), url, options};
}

std::string login_file() {
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/token";
  return first_of({environment("XDG_CACHE_HOME"), environment("HOME") + "/.cache"}) +
         "/huggingface/token";
}

/// The hub's own words, without the token.
std::string said_by(const HttpAnswer& answer, const std::string& token) {
  std::string text = answer.header("x-error-message");
  if (text.empty()) text = text_at(parse_untrusted_object(answer.body), {"error"});
  text = service_words(std::move(text), {token});
  return text.empty() ? "" : text + ". ";
}

/// What the hub says of a file; nothing of a folder.
std::optional<HubFile> parse_file(const Json& entry) {
  if (text_at(entry, {"path"}).empty() || text_at(entry, {"type"}) == "directory")
    return std::nullopt;
  HubFile file{.path = text_at(entry, {"path"}), .sha256 = {}, .blob_id = text_at(entry, {"oid"})};
  file.sha256 = text_at(entry, {"lfs", "oid"});
  const Json size = json_at(entry, {"size"});
  if (size.is_number_integer()) file.size = size.get<int64_t>();
  return file;
}

/// The query of the next page that a header "Link" names (RFC 8288); empty on the last one. Its host
/// is passed over: behind a mirror it is the hub's own, and the login is for the mirror.
std::string next_query(const std::string& link) {
  for (size_t at = 0; (at = link.find('<', at)) != std::string::npos; ++at) {
    const size_t end = link.find('>', at);
    if (end == std::string::npos) return "";
    const size_t rest = std::min(link.find('<', end), link.size());
    if (link.substr(end, rest - end).find("rel=\"next\"") == std::string::npos) continue;
    const std::string url = link.substr(at + 1, end - at - 1);
    const size_t query = url.find('?');
    return query == std::string::npos ? "" : url.substr(query);
  }
  return "";
}

// How a file comes into a repository: the hub says how it is kept, Git LFS takes a large one, then a commit.

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
  UploadNotes& notes;
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

  /// With what the notes know of this file, else what the hub says: no actions if it has these bytes already.
  void send() {
    state = parse_untrusted_object(notes.text);
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
    call.explain = advice_for({{403, "The address of the upload has expired, or is refused"},
                               {400, "The store found other bytes than were announced"}});
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
    std::map<int64_t, std::string> urls;  // of the parts: their numbers are the headers' names
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
  // Git LFS keeps no empty files.
  file.is_lfs = file.size > 0 && text_at(files[0], {"uploadMode"}) != "regular";
  if (file.is_lfs) {
    const HttpAttempts attempts({.url = where}, options);
    file.sha256 = sha256_of_file(upload.local_path, 0, {}, [&] {
      attempts.check();
      note_progress();
    });
    return file;
  }
  if (file.size > kMostInCommit) {
    throw NetworkError(
        "{}: the hub wants the file within a commit, without Git LFS, which takes at most 10 MiB",
        where);
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

std::string HubRepository::name() const {
  return access_.endpoint + (place_.is_dataset ? "/datasets/" : "/") + place_.repo +
         (place_.revision == "main" ? "" : "@" + place_.revision);
}

/// What is asked of the repository, with its revision behind it.
std::string HubRepository::api(const std::string& what) const {
  return (place_.is_dataset ? "/api/datasets/" : "/api/models/") + place_.repo + "/" + what + "/" +
         uri_encode(place_.revision);
}

HttpCall HubRepository::call(const std::string& method, const std::string& path) const {
  HttpCall call{.method = method, .url = access_.endpoint + path};
  call.plain_http = access_.plain_http;
  if (!access_.token.empty()) call.headers.push_back("Authorization: Bearer " + access_.token);
  call.explain = [self = *this](const HttpAnswer& answer) { return self.explain(answer); };
  return call;
}

HttpCall HubRepository::post(const std::string& path,
                             const std::string& body,
                             const std::string& type) const {
  HttpCall post = call("POST", path);
  post.headers.push_back("Content-Type: " + type);
  post.body = body;
  return post;
}

std::string HubRepository::explain(const HttpAnswer& answer) const {
  const std::string said = said_by(answer, access_.token), code = answer.header("x-error-code");
  const std::string who =
      access_.token.empty()
          ? "no token was found (HF_TOKEN, token_path, or the file of `hf auth login`)"
          : "the token is that of " + access_.source;
  if (code == "EntryNotFound") return said + "There is no such file or folder in the repository";
  if (code == "RevisionNotFound") return said + "The repository has no branch " + place_.revision;
  if (code == "GatedRepo") return said + "Ask for access on the page of the repository; " + who;
  if (answer.status() == 401) {
    return said + "The hub does not know the token, or the repository is private or absent; " + who;
  }
  if (answer.status() == 403) return said + "The token has no right to do this: " + who;
  if (answer.status() == 404 || code == "RepoNotFound") {
    return fmt::format("{}There is no {} for this login; {}", said, place_.repo, who);
  }
  if (answer.status() == 409 || answer.status() == 412) return said + "Another commit came first";
  return said + status_advice(answer.status());
}

void HubRepository::check_token() const {
  if (access_.token.empty()) {
    throw NetworkError(
        "{}: no token was found.\n  Give one that may write: as HF_TOKEN, in the file token_path, "
        "or by `hf auth login`. {}/settings/tokens makes one.",
        name(),
        access_.endpoint);
  }
  const Json who = http_json(call("GET", "/api/whoami-v2"), {}, options_);
  if (text_at(who, {"auth", "accessToken", "role"}) != "read") return;
  throw NetworkError(
      "{}: the token of {} may only read.\n  Give one with the role \"write\" from "
      "{}/settings/tokens.",
      name(),
      access_.source,
      access_.endpoint);
}

void HubRepository::create(bool is_private) const {
  const size_t owner = place_.repo.find('/');
  HttpCall look = call("GET", api("revision"));
  look.accepted = {401, 404};  // 401: of a private one that others own too
  if (http_call(look, options_).status() != 200) {
    const Json content = {{"name", place_.repo.substr(owner + 1)},
                          {"organization", place_.repo.substr(0, owner)},
                          {"private", is_private},
                          {"visibility", is_private ? "private" : "public"}};
    HttpCall make = post("/api/repos/create", content.dump(), "application/json");
    make.accepted = {409};  // it is there, or another process was first
    if (http_call(make, options_).status() != 409) {
      log_info("net", "Made the {} repository {}", is_private ? "private" : "public", name());
    }
  }
  if (place_.revision == "main") return;
  HttpCall branch = post(api("branch"), "{}", "application/json");
  branch.accepted = {409};
  http_call(branch, options_);
}

std::string HubRepository::commit() const {
  return text_at(http_json(call("GET", api("revision")), {}, options_), {"sha"});
}

std::vector<HubFile> HubRepository::list(const std::string& folder) const {
  const std::string path =
      api("tree") + (folder.empty() ? "" : "/" + uri_encode(folder, /*keep_slash=*/true));
  std::vector<HubFile> files;
  std::string query;
  for (size_t pages = 0; pages == 0 || !query.empty(); ++pages) {
    const HttpAnswer answer = http_call(call("GET", path + query), options_);
    const Json page = json_of(answer);
    if (!page.is_array()) {
      throw NetworkError(
          "{}/{}: expected a list of files, got {}\n  Check HF_ENDPOINT: is it a hub?",
          name(),
          folder,
          page.type_name());
    }
    for (const Json& entry : page) {
      if (const auto file = parse_file(entry)) files.push_back(*file);
    }
    if (pages >= kMostPages || files.size() > kMostListedFiles) {
      throw NetworkError("{}/{}: the folder has more than {} files", name(), folder, files.size());
    }
    query = next_query(answer.header("link"));
  }
  return files;
}

std::optional<HubFile> HubRepository::find(const std::string& path) const {
  const Json paths = {{"paths", Json::array({path})}, {"expand", false}};
  const Json found = http_json(call("POST", api("paths-info")), paths, options_);
  if (!found.is_array()) return std::nullopt;
  for (const Json& entry : found) {
    const auto file = parse_file(entry);
    if (file && file->path == path) return file;
  }
  return std::nullopt;
}

HubRepository::Download HubRepository::download(const std::string& path) const {
  HubRepository now = *this;
  now.place_.revision = first_of({commit(), place_.revision});
  const std::optional<HubFile> file = now.find(path);
  if (!file) {
    throw NetworkError(
        "{}/{}: the hub knows no such path.\n  There is no such file or folder in the "
        "repository.",
        name(),
        path);
  }
  Download found{now.request(path), *file};
  found.request.shown = name() + "/" + path;
  return found;
}

HttpGet HubRepository::request(const std::string& path) const {
  HttpGet get = call("GET",
                     (place_.is_dataset ? "/datasets/" : "/") + place_.repo + "/resolve/" +
                         uri_encode(place_.revision) + "/" + uri_encode(path, /*keep_slash=*/true));
  get.shown = name() + "/" + path;
  return get;
}

HubAccess find_hub_access(const std::optional<std::string>& token_path, bool plain_http) {
  HubAccess access{.endpoint = service_address(environment("HF_ENDPOINT"),
                                               "HF_ENDPOINT",
                                               "https://huggingface.co",
                                               "the token as HF_TOKEN",
                                               plain_http),
                   .plain_http = plain_http};
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (!access.token.empty()) break;
    access.token = trimmed(environment(name));
    access.source = name;
  }
  if (access.token.empty()) {
    access.source = token_path.value_or(first_of({environment("HF_TOKEN_PATH"), login_file()}));
    std::ifstream file(access.source);
    std::getline(file, access.token, '\0');
    access.token = trimmed(access.token);
    if (token_path && access.token.empty()) {
      throw ConfigError(
          "token_path: '{}' {}\n  Write an access token into it (chmod 600), or give HF_TOKEN.",
          *token_path,
          file.is_open() ? "is empty" : "cannot be read");
    }
  }
  for (const char c : access.token) {  // what goes into a header
    if (c > ' ' && c < 127) continue;
    throw ConfigError(
        "{}: holds no token: one word is expected, of letters, digits and signs.\n"
        "  Make one at {}/settings/tokens.",
        access.source,
        access.endpoint);
  }
  return access;
}

std::string HubUrl::text() const {
  return fmt::format("{}{}{}{}/{}",
                     kScheme,
                     is_dataset ? kDatasets : "",
                     repo,
                     revision == "main" ? "" : "@" + uri_encode(revision),
                     path);
}

HubUrl parse_hub_url(const std::string& url, HubPath path) {
  static const std::regex form("hf://(datasets/)?([^/@]+/[^/@]+)(@([^/]*))?(/(.*))?");
  const char* const what = path == HubPath::kFile ? "FILE" : "FOLDER";
  HubUrl parsed;
  std::smatch parts;
  if (std::regex_match(url, parts, form)) {
    parsed.is_dataset = parts[1].matched;
    parsed.repo = parts[2];
    if (parts[3].matched) parsed.revision = uri_decode(parts[4]);
    parsed.path = without_slash(parts[6]);
  }
  const bool is_whole = path == HubPath::kFolder || !parsed.path.empty();
  if (is_hub_repo(parsed.repo) && !parsed.revision.empty() && is_whole) return parsed;
  throw ConfigError(
      "{}: expected hf://OWNER/NAME/{} (hf://OWNER/NAME@REVISION/{}, and behind hf://datasets/ the "
      "same of a data set), OWNER and NAME of letters, digits, '-', '.' and '_'",
      public_url(url),
      what,
      what);
}

HttpGet hub_request(const std::string& url) {
  const HubUrl place = parse_hub_url(url, HubPath::kFile);
  return repository_of(place).request(place.path);
}

std::vector<HubUrl> hub_list(const std::string& url, const HttpOptions& options) {
  HubUrl place = parse_hub_url(url, HubPath::kFolder);
  place.revision = repository_of(place, options).commit();
  std::vector<HubUrl> files;
  for (const HubFile& file : repository_of(place, options).list(place.path)) {
    files.push_back(place);
    files.back().path = file.path;
  }
  return files;
}

void HubRepository::upload(const HubUpload& upload, UploadNotes& notes) const {
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
