// SPDX-License-Identifier: MIT
#include "net/wandb_api.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <span>
#include <sstream>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/url.h"

namespace dalle2 {
namespace {

constexpr const char* kUsualAddress = "https://api.wandb.ai";
constexpr size_t kMostUploads = 100;  ///< whose places are asked for in one request

/// A text and where it stands, for people.
struct Setting {
  std::string value, source;
};

/// Of the environment, else of the files that `wandb offline`, `wandb login --host` and the like write.
Setting find_setting(const std::string& folder, const char* variable, const std::string& key) {
  const std::string global =
      first_of({environment("WANDB_CONFIG_DIR"), environment("HOME") + "/.config/wandb"});
  Setting setting{environment(variable), variable};
  for (const std::string& path : {folder + "/settings", global + "/settings"}) {
    const std::string value = read_ini(path)["default"][key];
    if (setting.value.empty() && !value.empty()) setting = {value, path + ": " + key};
  }
  return setting;
}

/// ./wandb or, where it is there already, ./.wandb
std::string find_folder() {
  const std::string parent = first_of({environment("WANDB_DIR"), "."});
  std::error_code error;
  return parent + (std::filesystem::exists(parent + "/.wandb", error) ? "/.wandb" : "/wandb");
}

std::string find_key(const std::string& base_url) {
  std::string key = trimmed(environment("WANDB_API_KEY")), source = "WANDB_API_KEY";
  if (key.empty()) {
    const size_t host = base_url.find("://") + 3;  // and port
    const std::string server = base_url.substr(host, base_url.find('/', host) - host);
    key = netrc_login(netrc_text(), server).value_or(NetrcLogin{}).password;
    source = first_of({environment("NETRC"), "~/.netrc"});
  }
  const bool is_printable =
      std::ranges::all_of(key, [](unsigned char c) { return std::isgraph(c) != 0; });
  if (is_printable) return key;
  throw ConfigError(
      "{}: the API key of {} holds blanks or control characters: copy it again from the service's "
      "page /authorize",
      source,
      base_url);
}

/// Sets the mode, and why.
void find_mode(WandbAccess& access, const Setting& setting) {
  const auto& [mode, source] = setting;
  const std::string disabled = lower_case(environment("WANDB_DISABLED"));
  const bool is_offline = mode == "offline" || mode == "dryrun";
  if (disabled == "true" || disabled == "1" || mode == "disabled") {
    access.mode = WandbMode::kDisabled;
    access.mode_reason = mode == "disabled" ? source + " is disabled" : "WANDB_DISABLED is set";
  } else if (is_offline) {
    access.mode_reason = source + " is " + mode;
  } else if (!mode.empty() && mode != "online" && mode != "run") {
    throw ConfigError("{} is \"{}\": expected online, offline or disabled", source, mode);
  } else if (!access.api_key.empty()) {
    access.mode = WandbMode::kOnline;
  } else if (mode.empty()) {
    access.mode_reason =
        fmt::format("there is no API key for {} (WANDB_API_KEY, ~/.netrc)", access.base_url);
  } else {
    throw ConfigError(
        "{} is {}, but there is no API key for {}\n"
        "  Set WANDB_API_KEY, or put it into ~/.netrc (`wandb login` does so), or set "
        "WANDB_MODE=offline.",
        source,
        mode,
        access.base_url);
  }
}

constexpr const char* kViewer = "query Viewer { viewer { id entity username } }";

constexpr const char* kRunState =
    "query RunState($project: String!, $entity: String, $name: String!) {"
    " model(name: $project, entityName: $entity) {"
    " bucket(name: $name, missingOk: true) {"
    " id name historyLineCount eventsLineCount logLineCount historyTail eventsTail } } }";

constexpr const char* kUpsert =
    "mutation UpsertBucket($name: String, $project: String, $entity: String, $groupName: String,"
    " $displayName: String, $notes: String, $config: JSONString, $host: String, $program: String,"
    " $jobType: String, $tags: [String!]) {"
    " upsertBucket(input: {name: $name, modelName: $project, entityName: $entity,"
    " groupName: $groupName, displayName: $displayName, notes: $notes, config: $config,"
    " host: $host, jobProgram: $program, jobType: $jobType, tags: $tags}) {"
    " bucket { id name displayName project { name entity { name } } historyLineCount } inserted } "
    "}";

constexpr const char* kCreateFiles =
    "mutation CreateRunFiles($entity: String!, $project: String!, $name: String!,"
    " $files: [String!]!) {"
    " createRunFiles(input: {entityName: $entity, projectName: $project, runName: $name,"
    " files: $files}) { runID uploadHeaders files { name uploadUrl } } }";

constexpr const char* kFindFile =
    "query RunFiles($project: String!, $entity: String!, $name: String!, $fileNames: [String]) {"
    " project(name: $project, entityName: $entity) { run(name: $name) {"
    " files(names: $fileNames, first: 50) {"
    " edges { node { name directUrl url sizeBytes md5 } } } } } }";

/// The service has sent numbers as texts too.
int64_t number_or(const Json& value, int64_t otherwise) {
  if (value.is_number()) return value.get<int64_t>();
  return value.is_string() ? std::atoll(value.get<std::string>().c_str()) : otherwise;
}

Json text_or_null(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

/// The variables of a query on a run.
Json of_run(const WandbRunPath& path, const Json& more = Json::object()) {
  Json variables = {
      {"project", path.project}, {"entity", text_or_null(path.entity)}, {"name", path.run_id}};
  variables.update(more);
  return variables;
}

/// The last of a JSON text of a list of JSON texts. NaN and infinities, which are no JSON, are zeros here.
Json last_row(const Json& tail) {
  const ParsedJson list = parse_untrusted_json(text_at(tail, {}));
  if (!list.is_right() || !list.value.is_array() || list.value.empty()) return nullptr;
  const std::string row = text_at(list.value.back(), {});
  return parse_untrusted_object(replaced(replaced(row, "NaN", "0.0"), "Infinity", "0.0"));
}

/// An address that the service names; without a host it is one of its own.
std::string named_address(const WandbAccess& access, const std::string& named) {
  const std::string url = with_small_schemes(named);
  if (url.starts_with('/')) return access.base_url + url;
  if (!url.starts_with("http://") || is_loopback_url(url)) return url;
  throw NetworkError("{}: the service names a plain http address of another machine, {}",
                     access.base_url,
                     public_url(url));
}

/// Whether the errors of a query, which come with status 200, say that it is refused. All else (too many
/// connections or requests, faults within the service) passes.
bool is_refusal(const Json& errors) {
  static const std::regex kRefusals(
      "not.found|not exist|permission|denied|forbidden|unauthorized|not authorized|unauthenticated|"
      "not logged in");
  return std::regex_search(lower_case(json_line(errors)), kRefusals);
}

constexpr const char* kRefusedKey =
    "The API key is refused: copy it from the service's page /authorize into WANDB_API_KEY or "
    "~/.netrc, or set WANDB_MODE=offline";

}  // namespace

std::string wandb_page(const WandbAccess& access, const WandbRunPath& run) {
  const bool is_usual = access.base_url == kUsualAddress;  // which has no pages
  return fmt::format("{}/{}/{}/runs/{}",
                     is_usual ? "https://wandb.ai" : public_url(access.base_url),
                     uri_encode(run.entity),
                     uri_encode(run.project),
                     uri_encode(run.run_id));
}

WandbRunPath parse_wandb_run_path(const std::string& text) {
  static const std::regex form("([^/]+)/([^/]+)/(runs/)?([^/]+)");
  std::smatch parts;
  if (std::regex_match(text, parts, form))
    return {.entity = parts[1], .project = parts[2], .run_id = parts[4]};
  throw ConfigError("\"{}\" is not a run of Weights & Biases: expected entity/project/run_id",
                    text);
}

HttpCall WandbApi::call(const std::string& method, const std::string& path) const {
  return {.method = method,
          .url = access_.base_url + path,
          .headers = {basic_authorization("api", access_.api_key)},
          .explain = advice_for(
              {{401, kRefusedKey},
               {403,
                "The login may not write there: check the entity and the project, or set "
                "WANDB_MODE=offline"}})};
}

Json WandbApi::graphql(const std::string& query, const Json& variables) const {
  const HttpCall request = call("POST", "/graphql");
  const Json answer = http_json(request, {{"query", query}, {"variables", variables}}, options_);
  const Json errors = json_at(answer, {"errors"});
  if (!errors.is_array() || errors.empty()) return json_at(answer, {"data"});
  const std::string said =
      service_words(text_at(errors.front(), {"message"}, "an error without a text"),
                    {access_.api_key, base64("api:" + access_.api_key)});
  const std::string text = fmt::format("{}: {}", public_url(request.url), said);
  if (!is_refusal(errors))
    throw UnreachableError("{}\n  The service fails: try again later.", text);
  throw HttpStatusError(
      200,
      text +
          "\n  Check the entity and the project of /tracker/log, and what the login may do there.");
}

std::string WandbApi::viewer() const {
  const Json viewer = json_at(graphql(kViewer, Json::object()), {"viewer"});
  // A key that the service does not know may be answered without a fault.
  if (viewer.is_object()) return text_at(viewer, {"entity"});
  throw HttpStatusError(401,
                        fmt::format("{}: the service knows nobody by this key.\n  {}.",
                                    public_url(access_.base_url),
                                    kRefusedKey));
}

std::optional<WandbRunState> WandbApi::find_run(const WandbRunPath& path) const {
  const Json bucket = json_at(graphql(kRunState, of_run(path)), {"model", "bucket"});
  if (!bucket.is_object()) return std::nullopt;
  const Json row = last_row(json_at(bucket, {"historyTail"}));
  const Json runtime = json_at(row, {"_runtime"});
  return WandbRunState{.history_lines = number_or(json_at(bucket, {"historyLineCount"}), 0),
                       .event_lines = number_or(json_at(bucket, {"eventsLineCount"}), 0),
                       .console_lines = number_or(json_at(bucket, {"logLineCount"}), 0),
                       .last_step = number_or(json_at(row, {"_step"}), -1),
                       .runtime_seconds = runtime.is_number() ? runtime.get<double>() : 0,
                       .last_row = row};
}

WandbRunPath WandbApi::upsert(const WandbRunInfo& info) const {
  const Json tags = info.tags.empty() ? Json(nullptr) : Json(info.tags);
  const Json bucket = json_at(graphql(kUpsert,
                                      of_run(info.path,
                                             {{"groupName", text_or_null(info.group)},
                                              {"displayName", text_or_null(info.name)},
                                              {"notes", text_or_null(info.notes)},
                                              {"config", info.config},
                                              {"host", text_or_null(info.host)},
                                              {"program", "dalle2-train"},
                                              {"jobType", text_or_null(info.job_type)},
                                              {"tags", tags}})),
                              {"upsertBucket", "bucket"});
  const Json project = json_at(bucket, {"project"});
  return {.entity = text_at(project, {"entity", "name"}, info.path.entity),
          .project = text_at(project, {"name"}, info.path.project),
          .run_id = text_at(bucket, {"name"}, info.path.run_id)};
}

void WandbApi::stream(const WandbRunPath& path, const Json& content) const {
  HttpOptions once = options_;
  once.attempts = 1;
  const std::string place = fmt::format("/files/{}/{}/{}/file_stream",
                                        uri_encode(path.entity),
                                        uri_encode(path.project),
                                        uri_encode(path.run_id));
  http_json(call("POST", place), content, once);
}

void WandbApi::upload(const WandbRunPath& path, const std::vector<WandbUpload>& files) const {
  std::optional<RefusedFiles> refused;
  for (size_t at = 0; at < files.size(); at += kMostUploads) {
    const std::span some = std::span(files).subspan(at, std::min(kMostUploads, files.size() - at));
    Json names = Json::array();
    for (const WandbUpload& file : some) names.push_back(file.name);
    const Json made =
        json_at(graphql(kCreateFiles, of_run(path, {{"files", names}})), {"createRunFiles"});
    std::map<std::string, std::string> urls;  // by name
    for (const Json& place : json_at(made, {"files"})) {
      urls[text_at(place, {"name"})] = text_at(place, {"uploadUrl"});
    }
    for (const WandbUpload& file : some) {
      const std::string& url = urls[file.name];
      if (url.empty()) throw NetworkError("{}: no place for {}", path.text(), file.name);
      HttpCall put{.method = "PUT", .url = named_address(access_, url), .body = file.content};
      if (!file.path.empty()) put.file = HttpFilePart{file.path};
      for (const Json& header : json_at(made, {"uploadHeaders"})) {
        put.headers.push_back(text_at(header, {}));
      }
      try {
        http_call(put, options_);
      } catch (const HttpStatusError& error) {
        if (may_pass(error) || error.status() == 401 || error.status() == 403) throw;
        if (!refused) refused.emplace(error);
        refused->names.push_back(file.name);
      }
    }
  }
  if (refused) throw *refused;
}

std::optional<WandbStoredFile> WandbApi::find_file(const WandbRunPath& path,
                                                   const std::string& name) const {
  const Json edges = json_at(graphql(kFindFile, of_run(path, {{"fileNames", Json::array({name})}})),
                             {"project", "run", "files", "edges"});
  for (const Json& edge : edges) {
    const Json node = json_at(edge, {"node"});
    if (json_at(node, {"name"}) != name) continue;
    const std::string url = text_at(node, {"directUrl"}, text_at(node, {"url"}));
    return WandbStoredFile{.url = named_address(access_, url),
                           .size = number_or(json_at(node, {"sizeBytes"}), 0),
                           .md5 = text_at(node, {"md5"})};
  }
  return std::nullopt;
}

std::vector<std::string> WandbApi::download_headers(const std::string& url) const {
  if (!url.starts_with(access_.base_url + "/")) return {};
  return {basic_authorization("api", access_.api_key)};
}

WandbAccess find_wandb_access() {
  WandbAccess access;
  access.folder = find_folder();
  const auto [url, source] = find_setting(access.folder, "WANDB_BASE_URL", "base_url");
  access.base_url = service_address(url, source, kUsualAddress, "the key as WANDB_API_KEY");
  access.api_key = find_key(access.base_url);
  find_mode(access, find_setting(access.folder, "WANDB_MODE", "mode"));
  access.console = find_setting(access.folder, "WANDB_CONSOLE", "console").value != "off";
  access.run_id = environment("WANDB_RUN_ID");
  access.name = environment("WANDB_NAME");
  access.notes = environment("WANDB_NOTES");
  access.group = environment("WANDB_RUN_GROUP");
  access.job_type = environment("WANDB_JOB_TYPE");
  std::istringstream tags(environment("WANDB_TAGS"));
  for (std::string tag; std::getline(tags, tag, ',');) {
    if (!tag.empty()) access.tags.push_back(tag);
  }
  return access;
}

}  // namespace dalle2
