// SPDX-License-Identifier: MIT
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "net/digest.h"
#include "net/s3/s3.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostS3Parts = 1'000;  ///< each is noted on the disk; S3 takes ten times as many
constexpr int kMostS3Rounds = 2;         ///< in which a store forgets an upload
constexpr int64_t kClockSlack = 60;      ///< seconds by which the times of a store may differ

HttpCall writing_call(const std::string& url, S3Request what, bool plain_http) {
  HttpCall call = s3_call(parse_s3_url(url), std::move(what), /*writes=*/true);
  call.plain_http = plain_http;
  return call;
}

/// Of one file to one url.
struct S3Upload {
  const std::string& url;
  const UploadNotes& notes;
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
    what.body_sha256 = sha256_of_file(part.path, part.offset, part.size, [&] { attempts.check(); });
    HttpCall put = call(std::move(what));
    put.file = part;
    return http_call(put, options.http);
  }

  void send_in_parts(const std::string& path, int64_t size) {
    state = parse_untrusted_object(notes.load());
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

void s3_upload(const std::string& path,
               const std::string& url,
               const UploadNotes& notes,
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
