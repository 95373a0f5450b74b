// SPDX-License-Identifier: MIT
#include "net/s3/s3_upload.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "net/digest.h"
#include "net/s3/s3_request.h"
#include "net/service_words.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostS3Parts = 10'000;

/// What is sent: a text, or a part of a file.
struct S3Body {
  std::string text = {};
  std::optional<HttpFilePart> file = {};
};

class S3Upload {
 public:
  S3Upload(const std::string& url, const S3UploadOptions& options)
      : shown_(url), url_(parse_s3_url(url)), options_(options) {}

  HttpAnswer call(const std::string& method, const S3Query& query, const S3Body& body) const {
    return call(method, query, body, options_.http);
  }

  HttpAnswer call(const std::string& method,
                  const S3Query& query,
                  const S3Body& body,
                  const HttpCallOptions& http) const {
    const S3Access access = find_s3_access();
    const S3Place place = s3_place(url_, access);
    SignedRequest parts = place.request;
    parts.method = method;
    parts.query = query;
    parts.body_sha256 = body.file ? sha256_of_file(body.file->path,
                                                   body.file->offset,
                                                   body.file->size,
                                                   [this] { check_cancelled(); })
                                  : to_hex(sha256(body.text));
    HttpCall call;
    call.method = method;
    call.url = place.origin + parts.path;
    if (!query.empty()) call.url += "?" + canonical_query(query);
    call.shown = shown_;
    call.headers = s3_headers(parts, access);
    call.body = body.text;
    call.file = body.file;
    call.plain_http = options_.plain_http;
    call.explain = [access](const HttpAnswer& answer) {
      return explain_s3_refusal(answer.head, answer.body, access, /*writes=*/true);
    };
    return http_call(call, http);
  }

  void send_whole(const std::string& path) const { call("PUT", {}, {.file = HttpFilePart{path}}); }

  void send_parts(const std::string& path, int64_t size) const {
    const int64_t chunk = std::max(options_.part_bytes, (size + kMostS3Parts - 1) / kMostS3Parts);
    const std::string id = begin();
    try {
      keep_ids(id);
      std::string list;
      for (int64_t number = 1, at = 0; at < size; ++number, at += chunk) {
        const S3Query query = {{"partNumber", std::to_string(number)}, {"uploadId", id}};
        const HttpFilePart part{path, at, std::min(chunk, size - at)};
        const std::string etag = call("PUT", query, {.file = part}).header("etag");
        list +=
            fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number, etag);
      }
      finish(id, list);
    } catch (const Error&) {
      if (abandon(id)) keep_ids("");
      throw;
    }
    keep_ids("");
  }

  /// What a process that was killed has begun.
  void abandon_earlier() {
    if (options_.ids == nullptr) return;
    const std::vector<std::string> earlier = options_.ids->load(shown_);
    for (const std::string& id : earlier) {
      if (!abandon(id)) left_.push_back(id);
    }
    if (!earlier.empty()) keep_ids("");
  }

 private:
  std::string begin() const {
    const HttpAnswer answer = call("POST", {{"uploads", ""}}, {});
    const std::string id = xml_element(answer.body, "UploadId").value_or("");
    if (!id.empty()) return id;
    throw NetworkError("{}: the store begins no upload in parts: is this an S3 store?", shown_);
  }

  /// A store may answer 200 and tell the fault in the body.
  void finish(const std::string& id, const std::string& list) const {
    const std::string body = "<CompleteMultipartUpload>" + list + "</CompleteMultipartUpload>";
    const HttpAnswer answer = call("POST", {{"uploadId", id}}, {.text = body});
    const std::optional<std::string> code = xml_element(answer.body, "Code");
    if (!code && xml_element(answer.body, "ETag")) return;
    const S3Access access = find_s3_access();
    throw NetworkError("{}: the store does not put the parts together: {}.\n  {}.",
                       shown_,
                       service_words(code.value_or("no word of the object"),
                                     {access.secret, access.session_token}),
                       explain_s3_refusal(answer.head, answer.body, access, true));
  }

  /// @param current the upload that is under way; empty: none
  void keep_ids(const std::string& current) const {
    if (options_.ids == nullptr) return;
    std::vector<std::string> ids = left_;
    if (!current.empty()) ids.push_back(current);
    try {
      options_.ids->keep(shown_, ids);
    } catch (const Error&) {  // the upload is worth more than what a kill would leave of it
    }
  }

  /// Parts that are left cost money. One short attempt, after a stop too.
  /// @return whether the store has no such parts any more
  bool abandon(const std::string& id) const {
    HttpCallOptions brief;
    brief.attempts = 1;
    brief.ends_at_stop = false;
    brief.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    try {
      call("DELETE", {{"uploadId", id}}, {}, brief);
      return true;
    } catch (const HttpStatusError& error) {
      return error.says_absent();
    } catch (const Error&) {  // the fault before it is the one to report
      return false;
    }
  }

  void check_cancelled() const {
    if (options_.http.cancelled && options_.http.cancelled()) {
      throw NetworkError("{}: cancelled", shown_);
    }
  }

  std::string shown_;
  S3Url url_;
  const S3UploadOptions& options_;
  std::vector<std::string> left_;  // uploads of earlier processes that the store still has
};

}  // namespace

void s3_upload(const std::string& path, const std::string& url, const S3UploadOptions& options) {
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  S3Upload upload(url, options);
  upload.abandon_earlier();
  if (size <= options.part_bytes) return upload.send_whole(path);
  upload.send_parts(path, size);
}

void s3_check_bucket(const std::string& url, const S3UploadOptions& options) {
  const S3Url parts = parse_s3_url(url);
  const S3Query query = {{"list-type", "2"}, {"max-keys", "0"}};
  try {
    S3Upload("s3://" + parts.bucket + "/", options).call("GET", query, {});
  } catch (const HttpStatusError& error) {
    // Keys that may write need not be allowed to list; a refused key is another matter.
    const bool may_not_list = error.status() == 403 &&
                              std::string(error.what()).find("AccessDenied") != std::string::npos &&
                              !find_s3_access().is_anonymous();
    if (!may_not_list) throw;
  }
}

}  // namespace dalle2
