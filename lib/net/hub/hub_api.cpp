// SPDX-License-Identifier: MIT
#include "net/hub/hub_api.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "net/http_call.h"
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

bool HubRepository::exists() const {
  HttpCall look = call("GET", api("revision"));
  look.accepted = {401, 404};  // 401: of a private one that others own too
  return http_call(look, options_).status() == 200;
}

void HubRepository::create(bool is_private) const {
  const size_t owner = place_.repo.find('/');
  if (!exists()) {
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
  HubUrl parsed;
  std::string place = url.substr(std::string(kScheme).size());
  parsed.is_dataset = place.starts_with(kDatasets);
  if (parsed.is_dataset) place.erase(0, std::string(kDatasets).size());
  const size_t owner = place.find('/');
  const size_t end = owner == std::string::npos ? owner : place.find('/', owner + 1);
  parsed.repo = place.substr(0, end);
  if (const size_t at = parsed.repo.find('@'); at != std::string::npos) {
    parsed.revision = uri_decode(parsed.repo.substr(at + 1));
    parsed.repo.resize(at);
  }
  if (end != std::string::npos) parsed.path = without_slash(place.substr(end + 1));
  if (!is_hub_repo(parsed.repo) || parsed.revision.empty() ||
      (parsed.path.empty() && path == HubPath::kFile)) {
    throw ConfigError(
        "{}: expected hf://OWNER/NAME/{} (hf://OWNER/NAME@REVISION/{}, and behind hf://datasets/ the "
        "same of a data set), OWNER and NAME of letters, digits, '-', '.' and '_'",
        public_url(url),
        path == HubPath::kFile ? "FILE" : "FOLDER",
        path == HubPath::kFile ? "FILE" : "FOLDER");
  }
  return parsed;
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

}  // namespace dalle2
