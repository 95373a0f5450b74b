// SPDX-License-Identifier: MIT
#include "net/s3/s3.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "net/digest.h"
#include "net/url.h"

namespace dalle2 {
namespace {

/// The path of a file of the AWS tools.
std::string aws_file(const char* variable, const std::string& name) {
  return first_of({environment(variable), environment("HOME") + "/.aws/" + name});
}

void set_keys(const std::string& id,
              const std::string& secret,
              const std::string& token,
              const std::string& source,
              S3Access& access) {
  if (id.empty() != secret.empty()) {
    throw ConfigError("{}: the {} is given without the {}.\n  Give both, or neither.",
                      source,
                      id.empty() ? "secret access key" : "access key id",
                      id.empty() ? "access key id" : "secret access key");
  }
  if (id.empty()) return;
  access.key_id = id;
  access.secret = secret;
  access.session_token = token;
  access.source = source;
}

/// The query as it is signed and has to be sent: encoded, sorted. The names hold nothing to encode.
std::string canonical_query(const S3Request& request) {
  std::string text;
  for (const auto& [name, value] : request.query) {
    text += (text.empty() ? "" : "&") + name + "=" + uri_encode(value);
  }
  return text;
}

/// Sets host and path. @return the url
std::string set_place(const S3Url& url, const S3Access& access, S3Request& request) {
  const bool in_path = !access.endpoint.empty() || url.bucket.find('.') != std::string::npos;
  const std::string amazon = "https://s3." + access.region + ".amazonaws.com";
  const std::string base =
      first_of({access.endpoint, amazon + (access.region.starts_with("cn-") ? ".cn" : "")});
  const size_t host = base.find("://") + 3, slash = std::min(base.find('/', host), base.size());
  request.host = (in_path ? "" : url.bucket + ".") + base.substr(host, slash - host);
  const std::string usual = base.starts_with("https:") ? ":443" : ":80";
  if (request.host.ends_with(usual)) request.host.resize(request.host.size() - usual.size());
  request.path = base.substr(slash) + (in_path ? "/" + uri_encode(url.bucket) : "") + "/" +
                 uri_encode(url.key, /*keep_slash=*/true);
  return base.substr(0, host) + request.host + request.path +
         (request.query.empty() ? "" : "?" + canonical_query(request));
}

/// The text of the first <name> element, unescaped; none without, or without its end.
std::optional<std::string> xml_element(std::string_view xml, const std::string& name) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  const size_t begin = xml.find(open);
  const size_t end = begin == std::string_view::npos ? begin : xml.find(close, begin);
  if (end == std::string_view::npos) return std::nullopt;
  return without_entities(xml.substr(begin + open.size(), end - begin - open.size()));
}

std::string advice(const std::string& code, long status, const S3Access& access, bool writes) {
  const std::string keys =
      access.is_anonymous()
          ? "no keys were found (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile "
            "AWS_PROFILE of ~/.aws/credentials), so the request was anonymous"
          : "the keys are those of " + access.source;
  if (code == "NoSuchBucket") return "There is no such bucket: check the url and the endpoint";
  if (code == "NoSuchUpload") return "The store has no such upload any more: begin it again";
  if (status == 404) return "There is no such object: check the url and its number";
  if (code == "ExpiredToken") return "The session token has expired: get new keys; " + keys;
  if (code == "InvalidAccessKeyId" || code == "InvalidToken") {
    return "The store does not know these keys: " + keys;
  }
  if (code == "SignatureDoesNotMatch") {
    return "The secret key does not belong to the access key id, or a proxy changes the request: " +
           keys;
  }
  if (code == "RequestTimeTooSkewed") return "The clock of this machine is wrong: set it";
  if (status >= 500 || status == 429 || status == 413) return status_advice(status);
  if (status != 401 && status != 403) {
    return "Check the url, AWS_REGION and the endpoint (AWS_ENDPOINT_URL_S3)";
  }
  return (writes ? "Give keys that may write there (s3:PutObject); "
                 : "Give keys that may read it (s3:GetObject, s3:ListBucket); without the right to "
                   "list, an absent object looks the same; ") +
         keys;
}

/// The store's words, and what to do.
std::string explain_refusal(const HttpAnswer& answer, const S3Access& access, bool writes) {
  const auto element = [&](const std::string& name) {
    return service_words(xml_element(answer.body, name).value_or(""),
                         {access.secret, access.session_token});
  };
  const std::string code = element("Code"), message = element("Message");
  const std::string region =
      first_of({service_words(answer.header("x-amz-bucket-region"), {}), element("Region")});
  const std::string said =
      code + (code.empty() || message.empty() ? "" : ": " + message) + (code.empty() ? "" : ". ");
  if (!region.empty() && region != access.region) {
    return fmt::format("{}The bucket is in the region {}, {} was asked: set AWS_REGION={}",
                       said,
                       region,
                       access.region,
                       region);
  }
  const bool moved = answer.status() / 100 == 3;
  return said + (moved ? "The bucket is in another region: set AWS_REGION to it"
                       : advice(code, answer.status(), access, writes));
}

constexpr int64_t kMostS3Parts = 1'000;  ///< each is noted on the disk; S3 takes ten times as many
constexpr int kMostS3Rounds = 2;         ///< in which a store forgets an upload
constexpr int64_t kClockSlack = 60;      ///< seconds by which the times of a store may differ

/// What asks for an object or a bucket. Keys are looked up and the request is signed again at each
/// attempt: temporary keys may be replaced meanwhile, and a signature is good for 15 minutes. Refusals
/// are explained without our keys, whatever the store says.
/// @param what host and path are set here
/// @param writes whether something is to be written
/// @throws ConfigError
HttpCall s3_call(const S3Url& url, S3Request what, bool writes) {
  HttpCall call{.method = what.method};
  call.url = set_place(url, find_s3_access(), what);
  call.shown = fmt::format("s3://{}/{}", url.bucket, url.key);
  call.sign = [what = std::move(what)]() -> std::vector<std::string> {
    const S3Access access = find_s3_access();
    if (access.is_anonymous()) return {};
    return sign_request(what, access, std::time(nullptr));
  };
  call.explain = [writes](const HttpAnswer& answer) {
    return explain_refusal(answer, find_s3_access(), writes);
  };
  return call;
}

HttpCall writing_call(const std::string& url, S3Request what, bool plain_http) {
  HttpCall call = s3_call(parse_s3_url(url), std::move(what), /*writes=*/true);
  call.plain_http = plain_http;
  return call;
}

/// Of one file to one url.
struct S3Upload {
  const std::string& url;
  UploadNotes& notes;
  const S3UploadOptions& options;
  /// What the notes keep: the upload, when it began, the size of its parts, those that are there.
  Json state = {};

  HttpCall call(S3Request what) const {
    return writing_call(url, std::move(what), options.plain_http);
  }
  std::string id() const { return text_at(state, {"upload_id"}); }
  size_t sent() const { return json_at(state, {"etags"}).size(); }

  HttpAnswer send(S3Request what, const HttpFilePart& part) const {
    what.method = "PUT";
    const HttpAttempts attempts({.url = url}, options.http);
    what.body_sha256 = sha256_of_file(part.path, part.offset, part.size, [&] {
      attempts.check();
      note_progress();
    });
    HttpCall put = call(std::move(what));
    put.file = part;
    return http_call(put, options.http);
  }

  void send_in_parts(const std::string& path, int64_t size) {
    state = parse_untrusted_object(notes.text);
    const Json part = json_at(state, {"part_bytes"});
    if (!json_at(state, {"etags"}).is_array() || !part.is_number_integer() || part < 1) state = {};
    const int64_t usual = std::max(options.part_bytes, (size + kMostS3Parts - 1) / kMostS3Parts);
    const int64_t chunk = id().empty() ? usual : part.get<int64_t>();
    const auto parts = static_cast<size_t>((size + chunk - 1) / chunk);
    for (int round = 1;; ++round) {
      try {
        if (id().empty()) begin(chunk);
        for (Json& etags = state["etags"]; etags.size() < parts; notes.keep(state.dump())) {
          const auto at = static_cast<int64_t>(etags.size()) * chunk;
          const std::string number = std::to_string(etags.size() + 1);
          etags.push_back(send({.query = {{"partNumber", number}, {"uploadId", id()}}},
                               {path, at, std::min(chunk, size - at)})
                              .header("etag"));
        }
        complete();
        break;
      } catch (const HttpStatusError& error) {
        const bool is_whole = sent() == parts, is_refused = is_whole && error.status() == 400;
        if (id().empty() || !(error.says_absent() || is_refused)) throw;
        // The store has no such upload: it was finished, and the answer got lost; or it was taken away. Or
        // the store does not know the parts any more.
        if (is_whole && !is_refused && is_there(size)) break;
        notes.keep("");
        if (round == kMostS3Rounds) throw;
        log_warning("net", "{}\n  All parts are sent again.", error.what());
        state = {};
      }
    }
    notes.keep("");
  }

  void begin(int64_t chunk) {
    const HttpAnswer answer =
        http_call(call({.method = "POST", .query = {{"uploads", ""}}}), options.http);
    state = {
        {"upload_id", xml_element(answer.body, "UploadId").value_or("")},
        {"begun", curl_getdate(answer.header("date").c_str(), nullptr)},  // by the store's clock
        {"part_bytes", chunk},
        {"etags", Json::array()}};
    if (!id().empty()) return notes.keep(state.dump());
    throw NetworkError("{}: the store begins no upload in parts: is this an S3 store?", url);
  }

  void complete() const {
    std::string body = "<CompleteMultipartUpload>";
    for (int number = 0; const Json& etag : state["etags"]) {
      body += fmt::format(
          "<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", ++number, text_at(etag, {}));
    }
    body += "</CompleteMultipartUpload>";
    HttpCall post = call(
        {.method = "POST", .query = {{"uploadId", id()}}, .body_sha256 = to_hex(sha256(body))});
    post.body = std::move(body);
    post.slow_answer = true;  // white space comes while the store is at work
    for (HttpAttempts attempts(post, options.http);;) {
      const HttpAnswer answer = http_call(post, options.http);
      // A store may answer 200 and tell the fault in the body.
      const std::optional<std::string> code = xml_element(answer.body, "Code");
      if (!code && xml_element(answer.body, "ETag")) return;
      const bool passes =
          code == "InternalError" || code == "ServiceUnavailable" || code == "SlowDown";
      const S3Access access = find_s3_access();
      attempts.after({.reason = "the store does not put the parts together: " +
                                service_words(code.value_or("no word of the object"),
                                              {access.secret, access.session_token}),
                      .advice = post.explain(answer),
                      .is_final = !passes,
                      .status = passes                   ? 0
                                : code == "NoSuchUpload" ? 404
                                                         : 400});
    }
  }

  /// Whether the object is what this upload makes of the file: it may not be asked for by all keys.
  bool is_there(int64_t size) const {
    HttpCall look = call({.method = "HEAD"});
    look.accepted = {403, 404};
    const HttpAnswer answer = http_call(look, options.http);
    const auto changed = curl_getdate(answer.header("last-modified").c_str(), nullptr);
    const Json begun = json_at(state, {"begun"});
    return answer.status() == 200 && answer.head.content_length == size &&
           answer.header("etag").ends_with(fmt::format("-{}\"", sent())) &&
           begun.is_number_integer() && begun > 0 && changed >= begun.get<int64_t>() - kClockSlack;
  }
};

}  // namespace

S3Access find_s3_access() {
  const std::string credentials = aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
                    config = aws_file("AWS_CONFIG_FILE", "config"), title = "profile ";
  IniFile profiles = read_ini(credentials);
  for (auto& [name, section] : read_ini(config)) {
    const bool is_profile = name.starts_with(title);
    auto& known = profiles[is_profile ? trimmed(name.substr(title.size())) : name];
    if (known.contains("aws_access_key_id")) {  // keys of two files are no pair
      for (const char* key : {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
        section.erase(key);
    }
    known.merge(section);
  }
  const std::string profile = first_of({environment("AWS_PROFILE"), "default"});
  const std::string source = fmt::format("[{}] of {} and {}", profile, credentials, config);
  const bool is_there = profiles.contains(profile);
  auto& section = profiles[profile];
  S3Access access;
  set_keys(trimmed(environment("AWS_ACCESS_KEY_ID")),
           trimmed(environment("AWS_SECRET_ACCESS_KEY")),
           trimmed(environment("AWS_SESSION_TOKEN")),
           "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
           access);
  if (access.is_anonymous() && !is_there && !environment("AWS_PROFILE").empty()) {
    throw ConfigError(
        "AWS_PROFILE is \"{}\", but neither {} nor {} has a section with that name.\n  Name a "
        "profile that exists, or give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        profile,
        credentials,
        config);
  }
  if (access.is_anonymous()) {
    set_keys(section["aws_access_key_id"],
             section["aws_secret_access_key"],
             section["aws_session_token"],
             source,
             access);
  }
  for (const char* other : {"credential_process", "role_arn", "sso_session", "sso_start_url"}) {
    if (!access.is_anonymous() || section[other].empty()) continue;
    throw ConfigError(
        "{} gets its keys by {}, which only the AWS tools know.\n  Pass them on: eval "
        "\"$(aws configure export-credentials --format env)\".",
        source,
        other);
  }
  access.region = first_of({environment("AWS_REGION"),
                            environment("AWS_DEFAULT_REGION"),
                            section["region"],
                            "us-east-1"});
  access.endpoint = without_slash(
      with_small_schemes(first_of({environment("AWS_ENDPOINT_URL_S3"),
                                   environment("AWS_ENDPOINT_URL"),
                                   profiles["services " + section["services"]]["s3.endpoint_url"],
                                   section["endpoint_url"]})));
  const bool is_url =
      access.endpoint.starts_with("http://") || access.endpoint.starts_with("https://");
  if (!access.endpoint.empty() && !is_url) {
    throw ConfigError(
        "the S3 endpoint is \"{}\": expected http://HOST[:PORT] or https://HOST[:PORT].\n"
        "  It comes from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or {}.",
        public_url(access.endpoint),
        config);
  }
  return access;
}

S3Url parse_s3_url(const std::string& url) {
  constexpr std::string_view kScheme = "s3://";
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  S3Url parts{url.substr(kScheme.size(), slash - kScheme.size()), ""};
  if (slash < url.size()) parts.key = url.substr(slash + 1);
  if (!url.starts_with(kScheme) || parts.bucket.empty()) {
    throw ConfigError("{}: expected s3://BUCKET/KEY", public_url(url));
  }
  return parts;
}

HttpGet s3_request(const std::string& url) {
  const S3Url parts = parse_s3_url(url);
  if (parts.key.empty()) {
    throw ConfigError("{}: expected s3://BUCKET/KEY, the key is absent", public_url(url));
  }
  return s3_call(parts, {}, /*writes=*/false);
}

std::vector<std::string> s3_list(const std::string& url, const HttpOptions& options) {
  const S3Url parts = parse_s3_url(url);
  const size_t slash = parts.key.rfind('/');
  const size_t folder = slash == std::string::npos ? 0 : slash + 1;
  std::vector<std::string> names;
  std::string token;  // of the page
  S3Request page_of{
      .query = {
          {"delimiter", "/"}, {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", parts.key}}};
  for (size_t pages = 1;; ++pages) {
    HttpCall call = s3_call({parts.bucket, ""}, page_of, /*writes=*/false);
    call.shown = url;
    call.most_bytes = kMostPageBytes;
    call.plain_http = true;
    const S3Page page = parse_s3_page(http_call(call, options).body);
    for (const std::string& key : page.keys) {
      if (key.size() > folder) names.push_back(key.substr(folder));
    }
    if (names.size() > kMostListedFiles || pages > kMostPages) {
      throw NetworkError(
          "{}: the listing continues after {} names on {} pages.\n  Give a folder with fewer files, "
          "or one file's url with {{}} for the shard number.",
          url,
          names.size(),
          pages);
    }
    if (page.is_last) return names;
    if (page.next_token.empty() || page.next_token == token) {
      throw NetworkError(
          "{}: the listing breaks off after {} names: the store does not say where "
          "its next page is",
          url,
          names.size());
    }
    page_of.query["continuation-token"] = token = page.next_token;
  }
}

S3Page parse_s3_page(std::string_view xml) {
  constexpr std::string_view kBegin = "<Contents>", kEnd = "</Contents>";
  S3Page page;
  const bool encoded =
      xml_element(xml, "EncodingType").value_or("") == "url";  // some stores do not
  for (size_t at = 0; (at = xml.find(kBegin, at)) != std::string_view::npos;) {
    const size_t end = xml.find(kEnd, at);
    if (end == std::string_view::npos) break;
    std::string key = xml_element(xml.substr(at, end - at), "Key").value_or("");
    if (encoded) {  // as in forms
      std::ranges::replace(key, '+', ' ');
      key = uri_decode(key);
    }
    if (!key.empty()) page.keys.push_back(std::move(key));
    at = end;
  }
  page.is_last = xml_element(xml, "IsTruncated").value_or("false") != "true";
  page.next_token = xml_element(xml, "NextContinuationToken").value_or("");
  return page;
}

std::vector<std::string> sign_request(const S3Request& request,
                                      const S3Access& keys,
                                      std::time_t now) {
  const std::string time = fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now));
  const std::string date = time.substr(0, time.find('T'));
  const std::string body = first_of({request.body_sha256, to_hex(sha256(""))});
  std::map<std::string, std::string> headers = {
      {"host", request.host}, {"x-amz-content-sha256", body}, {"x-amz-date", time}};
  if (!keys.session_token.empty()) headers["x-amz-security-token"] = keys.session_token;
  std::string signed_headers, names;
  std::vector<std::string> lines;
  for (const auto& [name, value] : headers) {  // a map: in the order that is asked for
    signed_headers += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
    lines.push_back(name + ": " + value);
  }
  const std::string canonical = request.method + "\n" + request.path + "\n" +
                                canonical_query(request) + "\n" + signed_headers + "\n" + names +
                                "\n" + body;
  const std::string scope = date + "/" + keys.region + "/s3/aws4_request";
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, to_hex(sha256(canonical)));
  std::string key = "AWS4" + keys.secret;
  for (const char* part : {date.c_str(), keys.region.c_str(), "s3", "aws4_request"}) {
    key = hmac_sha256(key, part);
  }
  lines.push_back(
      fmt::format("authorization: AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}",
                  keys.key_id,
                  scope,
                  names,
                  to_hex(hmac_sha256(key, to_sign))));
  return lines;
}

void s3_upload(const std::string& path,
               const std::string& url,
               UploadNotes& notes,
               const S3UploadOptions& options) {
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  S3Upload upload{url, notes, options};
  size <= options.part_bytes ? void(upload.send({}, {path})) : upload.send_in_parts(path, size);
}

void s3_check_bucket(const std::string& url, const S3UploadOptions& options) {
  const std::string bucket = "s3://" + parse_s3_url(url).bucket + "/";
  const S3Request what{.query = {{"list-type", "2"}, {"max-keys", "0"}}};
  try {
    http_call(writing_call(bucket, what, options.plain_http), options.http);
  } catch (const HttpStatusError& error) {
    // Keys that may write need not be allowed to list; a refused key is another matter.
    const bool may_not_list = error.status() == 403 &&
                              std::string(error.what()).find("AccessDenied") != std::string::npos &&
                              !find_s3_access().is_anonymous();
    if (!may_not_list) throw;
  }
}

}  // namespace dalle2
