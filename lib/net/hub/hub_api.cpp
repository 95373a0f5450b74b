// SPDX-License-Identifier: MIT
#include "net/hub/hub_api.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "net/http_call.h"
#include "net/login_files.h"
#include "net/s3/s3.h"  // limits of listings
#include "net/service_words.h"
#include "net/url.h"

namespace dalle2 {
namespace {

/// What goes into a header: letters, digits and signs, on one line.
void check_token(const HubAccess& access) {
  for (const char c : access.token) {
    if (c > ' ' && c < 127) continue;
    throw ConfigError(
        "{}: holds no token: one word is expected, of letters, digits and signs.\n"
        "  Make one at {}/settings/tokens.",
        access.source,
        access.endpoint);
  }
}

/// Each fetch looks for the token; each warning is given once.
bool is_first_time(const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> told;
  const std::lock_guard lock(mutex);
  return told.insert(path).second;
}

/// @return false if there is no such file
bool read_token(const std::string& path, HubAccess& access) {
  std::ifstream file(path);
  if (!file) return false;
  std::string text;
  text.resize(1 << 12);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  access.token = trimmed(text);
  access.source = path;
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0 &&
      is_first_time(path)) {
    log_warning("net", "{}: others may read this token: chmod 600 {}", path, path);
  }
  return true;
}

std::string login_file() {
  if (const std::string path = environment("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/token";
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) + "/huggingface/token";
}

/// The hub's own words, without the token.
std::string said_by(const HttpAnswer& answer, const std::string& token) {
  std::string text = answer.header("x-error-message");
  if (text.empty()) text = text_at(parse_untrusted_object(answer.body), {"error"});
  text = service_words(std::move(text), {token});
  return text.empty() ? "" : text + ". ";
}

std::string owner_of(const std::string& repo) {
  return repo.substr(0, repo.find('/'));
}

}  // namespace

HubRepository::HubRepository(HubAccess access,
                             std::string repo,
                             std::string revision,
                             bool is_dataset)
    : access_(std::move(access)),
      repo_(std::move(repo)),
      revision_(std::move(revision)),
      is_dataset_(is_dataset) {}

/// The path of its page.
std::string HubRepository::page() const {
  return (is_dataset_ ? "/datasets/" : "/") + repo_;
}

std::string HubRepository::name() const {
  return access_.endpoint + page() + (revision_ == "main" ? "" : "@" + revision_);
}

std::string HubRepository::api(const std::string& what) const {
  return (is_dataset_ ? "/api/datasets/" : "/api/models/") + repo_ + what;
}

HttpCall HubRepository::call(const std::string& method, const std::string& path) const {
  HttpCall call;
  call.method = method;
  call.url = access_.endpoint + path;
  call.plain_http = access_.plain_http;
  if (!access_.token.empty()) call.headers.push_back("Authorization: Bearer " + access_.token);
  call.explain = [this](const HttpAnswer& answer) { return explain(answer); };
  return call;
}

std::string HubRepository::explain(const HttpAnswer& answer) const {
  const std::string said = said_by(answer, access_.token), code = answer.header("x-error-code");
  const std::string who =
      access_.token.empty()
          ? "no token was found (HF_TOKEN, token_path, or the file of `hf auth login`)"
          : "the token is that of " + access_.source;
  if (code == "EntryNotFound") return said + "There is no such file or folder in the repository";
  if (code == "RevisionNotFound") return said + "The repository has no branch " + revision_;
  if (code == "GatedRepo") return said + "Ask for access on the page of the repository; " + who;
  if (answer.status() == 401) {
    return said + "The hub does not know the token, or the repository is private or absent; " + who;
  }
  if (answer.status() == 403) return said + "The token has no right to do this: " + who;
  if (answer.status() == 404 || code == "RepoNotFound") {
    return fmt::format("{}There is no {} for this login; {}", said, repo_, who);
  }
  if (answer.status() == 409 || answer.status() == 412) return said + "Another commit came first";
  return said + status_advice(answer.status());
}

void HubRepository::check_token(const HttpCallOptions& options) const {
  if (access_.token.empty()) {
    throw NetworkError(
        "{}: no token was found.\n  Give one that may write: as HF_TOKEN, in the file token_path, "
        "or by `hf auth login`. {}/settings/tokens makes one.",
        name(),
        access_.endpoint);
  }
  const Json who = http_json(call("GET", "/api/whoami-v2"), {}, options);
  if (text_at(who, {"auth", "accessToken", "role"}) != "read") return;
  throw NetworkError(
      "{}: the token of {} may only read.\n  Give one with the role \"write\" from "
      "{}/settings/tokens.",
      name(),
      access_.source,
      access_.endpoint);
}

bool HubRepository::exists(const HttpCallOptions& options) const {
  HttpCall look = call("GET", api("/revision/" + uri_encode(revision_)));
  look.accepted = {401, 404};  // 401: of a private one that others own too
  return http_call(look, options).status() == 200;
}

void HubRepository::create(bool is_private, const HttpCallOptions& options) const {
  if (!exists(options)) {
    HttpCall make = call("POST", "/api/repos/create");
    make.accepted = {409};  // it is there, or another process was first
    const Json content = {{"name", repo_.substr(repo_.find('/') + 1)},
                          {"organization", owner_of(repo_)},
                          {"private", is_private},
                          {"visibility", is_private ? "private" : "public"}};
    make.headers.emplace_back("Content-Type: application/json");
    make.body = content.dump();
    if (http_call(make, options).status() != 409) {
      log_info("net", "Made the {} repository {}", is_private ? "private" : "public", name());
    }
  }
  if (revision_ == "main") return;
  HttpCall branch = call("POST", api("/branch/" + uri_encode(revision_)));
  branch.accepted = {409};
  branch.headers.emplace_back("Content-Type: application/json");
  branch.body = "{}";
  http_call(branch, options);
}

std::string HubRepository::commit(const HttpCallOptions& options) const {
  const Json info = http_json(call("GET", api("/revision/" + uri_encode(revision_))), {}, options);
  return text_at(info, {"sha"});
}

namespace {

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

}  // namespace

std::vector<HubFile> HubRepository::list(const std::string& folder,
                                         const HttpCallOptions& options) const {
  const std::string path =
      api("/tree/" + uri_encode(revision_) +
          (folder.empty() ? "" : "/" + uri_encode(folder, /*keep_slash=*/true)));
  std::vector<HubFile> files;
  std::string query;
  for (size_t pages = 0; pages == 0 || !query.empty(); ++pages) {
    const HttpAnswer answer = http_call(call("GET", path + query), options);
    const ParsedJson page = parse_untrusted_json(answer.body);
    if (!page.is_right() || !page.value.is_array()) {
      throw NetworkError("{}/{}: expected a list of files, got {}",
                         name(),
                         folder,
                         page.is_right() ? "something else" : page.fault);
    }
    for (const Json& entry : page.value) {
      if (const auto file = parse_file(entry)) files.push_back(*file);
    }
    if (pages >= kMostPages || files.size() > kMostListedFiles) {
      throw NetworkError("{}/{}: the folder has more than {} files", name(), folder, files.size());
    }
    query = next_query(answer.header("link"));
  }
  return files;
}

std::optional<HubFile> HubRepository::find(const std::string& path,
                                           const HttpCallOptions& options) const {
  const Json paths = {{"paths", Json::array({path})}, {"expand", false}};
  const Json found =
      http_json(call("POST", api("/paths-info/" + uri_encode(revision_))), paths, options);
  if (!found.is_array()) return std::nullopt;
  for (const Json& entry : found) {
    const auto file = parse_file(entry);
    if (file && file->path == path) return file;
  }
  return std::nullopt;
}

HubRepository::Download HubRepository::download(const std::string& path,
                                                const HttpCallOptions& options) const {
  const std::string place = uri_encode(path, /*keep_slash=*/true);
  HttpCall look = call("HEAD", page() + "/resolve/" + uri_encode(revision_) + "/" + place);
  look.headers.emplace_back("Accept-Encoding: identity");
  look.ends_at_other_host = true;  // the store is asked when the file is read
  const HttpAnswer answer = http_call(look, options);
  Download found;
  found.file.path = path;
  const std::string linked_size = answer.header("x-linked-size");
  // The length of a redirect is that of its own page.
  const int64_t length = answer.status() == 200 ? answer.head.content_length.value_or(0) : 0;
  found.file.size = linked_size.empty() ? length : std::strtoll(linked_size.c_str(), nullptr, 10);
  std::string etag = answer.header("x-linked-etag");
  if (etag.starts_with("W/")) etag = etag.substr(2);
  if (etag.size() == 66 && etag.front() == '"') found.file.sha256 = etag.substr(1, 64);
  // The commit of now: a later one changes nothing under a transfer that was cut.
  const std::string commit = answer.header("x-repo-commit");
  found.request = request(path, commit.empty() ? revision_ : commit);
  return found;
}

HttpGet HubRepository::request(const std::string& path, const std::string& revision) const {
  HttpGet get = call(
      "GET",
      page() + "/resolve/" + uri_encode(revision) + "/" + uri_encode(path, /*keep_slash=*/true));
  get.shown = name() + "/" + path;
  get.explain = [self = *this](const HttpAnswer& answer) { return self.explain(answer); };
  return get;
}

HubAccess find_hub_access(const std::optional<std::string>& token_path, bool plain_http) {
  HubAccess access;
  access.endpoint = service_address(environment("HF_ENDPOINT"),
                                    "HF_ENDPOINT",
                                    "https://huggingface.co",
                                    "the token as HF_TOKEN",
                                    plain_http);
  access.plain_http = plain_http;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    access.token = trimmed(environment(name));
    access.source = name;
    if (!access.token.empty()) return check_token(access), access;
  }
  access.source.clear();
  if (token_path) {
    if (!read_token(*token_path, access) || access.token.empty()) {
      throw ConfigError(
          "token_path: '{}' {}\n  Write an access token into it (chmod 600), or give HF_TOKEN.",
          *token_path,
          access.source.empty() ? "cannot be read" : "is empty");
    }
  } else {
    read_token(login_file(), access);
  }
  check_token(access);
  return access;
}

}  // namespace dalle2
