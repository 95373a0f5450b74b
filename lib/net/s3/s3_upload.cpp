// SPDX-License-Identifier: MIT
#include "net/s3/s3_upload.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "net/digest.h"
#include "net/http_call.h"
#include "net/s3/s3_request.h"
#include "net/service_words.h"

namespace dalle2 {
namespace {

constexpr int64_t kMostS3Parts = 10'000;
constexpr int kMostS3Rounds = 2;     ///< in which a store forgets an upload
constexpr int64_t kClockSlack = 60;  ///< seconds by which the times of a store may differ

class S3Upload {
 public:
  S3Upload(const std::string& url, const S3UploadOptions& options)
      : shown_(url), url_(parse_s3_url(url)), options_(options) {}

  /// @param what method and query
  HttpCall call(SignedRequest what) const {
    HttpCall call = s3_call(url_, std::move(what), /*writes=*/true);
    call.plain_http = options_.plain_http;
    return call;
  }

  void send_whole(const std::string& path) const { send_file({.method = "PUT"}, {path}); }

  void send_parts(const std::string& path, int64_t size) {
    const int64_t chunk = std::max(options_.part_bytes, (size + kMostS3Parts - 1) / kMostS3Parts);
    const int64_t parts = (size + chunk - 1) / chunk;
    const Json file = {
        {"url", shown_},
        {"size", size},
        {"part_bytes", chunk},
        {"modified", std::filesystem::last_write_time(path).time_since_epoch().count()}};
    take_up(file);
    try {
      for (int round = 1;; ++round) {
        try {
          if (id_.empty()) begin();
          for (int64_t part = etags(); part < parts; ++part) {
            keep(file);
            const int64_t at = part * chunk;
            const HttpAnswer answer =
                send_file({.query = {{"partNumber", std::to_string(part + 1)}, {"uploadId", id_}},
                           .method = "PUT"},
                          {path, at, std::min(chunk, size - at)});
            etags_.push_back(answer.header("etag"));
          }
          keep(file);
          complete();
          break;
        } catch (const HttpStatusError& error) {
          const bool is_whole = etags() == parts, is_refused = is_whole && error.status() == 400;
          if (id_.empty() || !(error.says_absent() || is_refused)) throw;
          // The store has no such upload: it was finished, and the answer got lost; or it was taken away. Or
          // the store does not know the parts any more.
          if (is_whole && !is_refused && is_there(size)) break;
          if (round == kMostS3Rounds) throw;
          log_warning("net", "{}\n  All parts are sent again.", error.what());
          abandon();
        }
      }
    } catch (const Error&) {
      if (options_.notes == nullptr) abandon();
      throw;
    }
    id_.clear();
    keep(file);
  }

  void abandon(const std::string& notes) {
    id_ = text_at(parse_untrusted_object(notes), {"upload_id"});
    abandon();
  }

 private:
  int64_t etags() const { return static_cast<int64_t>(etags_.size()); }

  HttpAnswer send_file(SignedRequest what, HttpFilePart part) const {
    what.body_sha256 = sha256_of_file(part.path, part.offset, part.size, [this] {
      if (options_.http.cancelled && options_.http.cancelled()) {
        throw NetworkError("{}: cancelled", shown_);
      }
    });
    HttpCall put = call(std::move(what));
    put.file = std::move(part);
    return http_call(put, options_.http);
  }

  /// Goes on with the upload in the notes, if it is one of this file.
  void take_up(const Json& file) {
    const Json notes = parse_untrusted_object(options_.notes ? options_.notes->load() : "");
    id_ = text_at(notes, {"upload_id"});
    if (id_.empty()) return;
    for (const auto& [key, value] : file.items()) {
      if (json_at(notes, {key}) != value) return abandon();
    }
    const Json begun = json_at(notes, {"begun"}), etags = json_at(notes, {"etags"});
    if (begun.is_number_integer()) begun_ = begun.get<int64_t>();
    for (const Json& etag : etags) etags_.push_back(text_at(etag, {}));
  }

  void keep(Json notes) const {
    if (options_.notes == nullptr) return;
    notes.update({{"upload_id", id_}, {"begun", begun_}, {"etags", etags_}});
    try {
      options_.notes->keep(id_.empty() ? "" : notes.dump());
    } catch (const Error&) {  // the upload is worth more than what a kill would cost
    }
  }

  void begin() {
    etags_.clear();
    const HttpAnswer answer =
        http_call(call({.query = {{"uploads", ""}}, .method = "POST"}), options_.http);
    id_ = xml_element(answer.body, "UploadId").value_or("");
    begun_ = curl_getdate(answer.header("date").c_str(), nullptr);
    if (!id_.empty()) return;
    throw NetworkError("{}: the store begins no upload in parts: is this an S3 store?", shown_);
  }

  void complete() const {
    std::string body = "<CompleteMultipartUpload>";
    for (size_t i = 0; i < etags_.size(); ++i) {
      body +=
          fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etags_[i]);
    }
    body += "</CompleteMultipartUpload>";
    HttpCall post =
        call({.query = {{"uploadId", id_}}, .method = "POST", .body_sha256 = to_hex(sha256(body))});
    post.body = std::move(body);
    post.slow_answer = true;  // white space comes while the store is at work
    for (HttpAttempts attempts(post, options_.http);;) {
      const HttpAnswer answer = http_call(post, options_.http);
      // A store may answer 200 and tell the fault in the body.
      const std::optional<std::string> code = xml_element(answer.body, "Code");
      if (!code && xml_element(answer.body, "ETag")) return;
      const S3Access access = find_s3_access();
      const bool passes =
          code == "InternalError" || code == "ServiceUnavailable" || code == "SlowDown";
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
    const HttpAnswer answer = http_call(look, options_.http);
    const auto changed = curl_getdate(answer.header("last-modified").c_str(), nullptr);
    return answer.status() == 200 && answer.head.content_length == size &&
           answer.header("etag").ends_with(fmt::format("-{}\"", etags())) && begun_ > 0 &&
           changed >= begun_ - kClockSlack;
  }

  void abandon() {
    if (id_.empty()) return;
    const HttpCallOptions brief{
        .attempts = 1,
        .ends_at_stop = false,
        .deadline = std::chrono::steady_clock::now() + std::chrono::seconds(3)};
    try {
      http_call(call({.query = {{"uploadId", id_}}, .method = "DELETE"}), brief);
    } catch (const Error&) {  // the fault before it is the one to report
    }
    id_.clear();
  }

  std::string shown_;
  S3Url url_;
  const S3UploadOptions& options_;
  // Of an upload in parts:
  std::string id_;                  // empty: none is under way
  int64_t begun_ = -1;              // by the store's clock, seconds since 1970
  std::vector<std::string> etags_;  // of the parts that are there, in their order
};

}  // namespace

void s3_upload(const std::string& path, const std::string& url, const S3UploadOptions& options) {
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  S3Upload upload(url, options);
  if (size <= options.part_bytes) return upload.send_whole(path);
  upload.send_parts(path, size);
}

void s3_abandon(const std::string& url, const std::string& notes, bool plain_http) {
  const S3UploadOptions options{.plain_http = plain_http};
  S3Upload(url, options).abandon(notes);
}

void s3_check_bucket(const std::string& url, const S3UploadOptions& options) {
  const S3Upload bucket("s3://" + parse_s3_url(url).bucket + "/", options);
  try {
    http_call(bucket.call({.query = {{"list-type", "2"}, {"max-keys", "0"}}}), options.http);
  } catch (const HttpStatusError& error) {
    // Keys that may write need not be allowed to list; a refused key is another matter.
    const bool may_not_list = error.status() == 403 &&
                              std::string(error.what()).find("AccessDenied") != std::string::npos &&
                              !find_s3_access().is_anonymous();
    if (!may_not_list) throw;
  }
}

}  // namespace dalle2
