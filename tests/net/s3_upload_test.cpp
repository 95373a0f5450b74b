// SPDX-License-Identifier: MIT
#include "net/s3/s3_upload.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "net/digest.h"
#include "net/s3/s3.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// A store that takes parts; `fault` may answer in its place.
class Store {
 public:
  using Fault = std::function<std::optional<HttpReply>(const HttpRequest& request)>;

  explicit Store(Fault fault = nullptr)
      : fault_(std::move(fault)),
        server_([this](const HttpRequest& request) { return answer(request); }) {
    AwsEnvironment::set("AWS_ENDPOINT_URL_S3", server_.url(""));
    AwsEnvironment::set("AWS_ACCESS_KEY_ID", "id");
    AwsEnvironment::set("AWS_SECRET_ACCESS_KEY", "canary");
  }

  std::vector<HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  /// "PUT /b/k?partNumber=1&uploadId=u".
  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    for (const HttpRequest& request : requests())
      lines.push_back(request.method + " " + request.path);
    return lines;
  }

 private:
  HttpReply answer(const HttpRequest& request) {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    if (fault_) {
      if (const auto reply = fault_(request)) return *reply;
    }
    if (request.path.ends_with("?uploads="))
      return http_reply(200, "<R><UploadId>u</UploadId></R>");
    if (request.method == "POST") return http_reply(200, "<R><ETag>\"all\"</ETag></R>");
    return http_reply(200, "", "ETag: \"" + std::to_string(request.body.size()) + "\"\r\n");
  }

  const Fault fault_;
  std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  LoopbackServer server_;
};

S3UploadOptions in_parts_of(int64_t bytes) {
  S3UploadOptions options;
  options.http.stall_seconds = 0.4;
  options.part_bytes = bytes;
  return options;
}

struct File {
  TempDir folder;
  std::string path = folder / "f.pth";
  explicit File(const std::string& content) { std::ofstream(path) << content; }
};

std::string error_of_upload(const std::string& path, const S3UploadOptions& options) {
  try {
    s3_upload(path, "s3://b/k", options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a small file is one object, with the hash of its bytes signed") {
  const AwsEnvironment environment;
  Store store;
  const File file("twelve bytes");
  s3_upload(file.path, "s3://b/a folder/k", in_parts_of(12));
  REQUIRE(store.lines() == std::vector<std::string>{"PUT /b/a%20folder/k"});
  const HttpRequest request = store.requests().front();
  CHECK(request.body == "twelve bytes");
  CHECK(request.headers.at("x-amz-content-sha256") == to_hex(sha256("twelve bytes")));
  CHECK_THAT(request.headers.at("authorization"), Contains("AWS4-HMAC-SHA256 Credential=id/"));
}

TEST_CASE("a large file goes in parts, which are put together in their order") {
  const AwsEnvironment environment;
  Store store;
  const File file("0123456789a");
  s3_upload(file.path, "s3://b/k", in_parts_of(4));
  CHECK(store.lines() == std::vector<std::string>{"POST /b/k?uploads=",
                                                  "PUT /b/k?partNumber=1&uploadId=u",
                                                  "PUT /b/k?partNumber=2&uploadId=u",
                                                  "PUT /b/k?partNumber=3&uploadId=u",
                                                  "POST /b/k?uploadId=u"});
  const std::vector<HttpRequest> requests = store.requests();
  CHECK(requests[1].body + requests[2].body + requests[3].body == "0123456789a");
  CHECK(requests[3].body == "89a");
  CHECK(requests[3].headers.at("x-amz-content-sha256") == to_hex(sha256("89a")));
  CHECK(requests[4].body ==
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"4\"</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>\"4\"</ETag></Part>"
        "<Part><PartNumber>3</PartNumber><ETag>\"3\"</ETag></Part></CompleteMultipartUpload>");
}

TEST_CASE("a part that is cut or refused for a moment is sent again, and no other one") {
  const AwsEnvironment environment;
  const CapturedLog log;
  int faults = 0;
  Store store([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path.find("partNumber=2") == std::string::npos || ++faults > 2) return {};
    return faults == 1 ? HttpReply{} : http_reply(503, "<Error><Code>SlowDown</Code></Error>");
  });
  const File file("0123456789");
  s3_upload(file.path, "s3://b/k", in_parts_of(4));
  CHECK(store.lines().size() == 7);
  CHECK(faults == 3);
}

TEST_CASE("an upload that fails takes its parts away, and says why without the key") {
  const AwsEnvironment environment;
  const CapturedLog log;
  const File file("0123456789");
  Store refusing([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path.find("partNumber=2") == std::string::npos) return {};
    return http_reply(403, "<Error><Code>AccessDenied</Code><Message>canary</Message></Error>");
  });
  const std::string refused = error_of_upload(file.path, in_parts_of(4));
  CHECK_THAT(refused,
             Contains("s3://b/k: the server answers with status 403") &&
                 Contains("AccessDenied: ***. Give keys that may write there (s3:PutObject)") &&
                 !Contains("canary"));
  CHECK(refusing.lines().back() == "DELETE /b/k?uploadId=u");
}

TEST_CASE("a fault that a store tells with status 200 is a fault") {
  const AwsEnvironment environment;
  const File file("0123456789");
  Store store([](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.method != "POST" || request.path != "/b/k?uploadId=u") return {};
    return http_reply(200, "<Error><Code>InternalError</Code></Error>");
  });
  CHECK_THAT(error_of_upload(file.path, in_parts_of(4)),
             Contains("s3://b/k: the store does not put the parts together: InternalError"));
  CHECK(store.lines().back() == "DELETE /b/k?uploadId=u");
}

TEST_CASE(
    "the bucket is asked for at the start: a refused key ends it, no leave to list does not") {
  const AwsEnvironment environment;
  std::string code = "AccessDenied";
  Store store([&](const HttpRequest&) -> std::optional<HttpReply> {
    return http_reply(403, "<Error><Code>" + code + "</Code></Error>");
  });
  CHECK_NOTHROW(s3_check_bucket("s3://b/runs"));
  CHECK(store.lines() == std::vector<std::string>{"GET /b/?list-type=2&max-keys=0"});
  code = "InvalidAccessKeyId";
  CHECK_THROWS_WITH(s3_check_bucket("s3://b/runs"), Contains("The store does not know these keys"));
}

namespace {

struct KeptIds : S3UploadIds {
  std::vector<std::string> ids;
  std::vector<std::vector<std::string>> kept;  // each state

  std::vector<std::string> load(const std::string& url) override {
    CHECK(url == "s3://b/k");
    return ids;
  }
  void keep(const std::string& /*url*/, const std::vector<std::string>& now) override {
    ids = now;
    kept.push_back(now);
  }
};

}  // namespace

TEST_CASE("an upload that a kill left at the store is taken away before the next one") {
  const AwsEnvironment environment;
  const CapturedLog log;
  const File file("0123456789");
  KeptIds ids;
  ids.ids = {"old", "stuck", "gone"};
  bool is_away = true;
  Store store([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path.ends_with("=gone"))
      return http_reply(404, "<Error><Code>NoSuchUpload</Code></Error>");
    if (is_away && request.path.ends_with("=stuck")) return http_reply(500, "");
    return {};
  });
  S3UploadOptions options = in_parts_of(4);
  options.ids = &ids;
  s3_upload(file.path, "s3://b/k", options);
  const std::vector<std::string> lines = store.lines();
  CHECK(std::vector<std::string>(lines.begin(), lines.begin() + 4) ==
        std::vector<std::string>{"DELETE /b/k?uploadId=old",
                                 "DELETE /b/k?uploadId=stuck",
                                 "DELETE /b/k?uploadId=gone",
                                 "POST /b/k?uploads="});
  // What the store still has stays in mind beside the upload of now.
  CHECK(ids.kept == std::vector<std::vector<std::string>>{{"stuck"}, {"stuck", "u"}, {"stuck"}});
  // Also before a file that is sent as a whole.
  is_away = false;
  s3_upload(file.path, "s3://b/k", [&] {
    S3UploadOptions whole = in_parts_of(100);
    whole.ids = &ids;
    return whole;
  }());
  CHECK(store.lines().back() == "PUT /b/k");
  CHECK(ids.ids.empty());
}

TEST_CASE("an upload in parts that fails is kept in mind until the store has been told") {
  const AwsEnvironment environment;
  const CapturedLog log;
  const File file("0123456789");
  bool takes_delete = false;
  Store store([&](const HttpRequest& request) -> std::optional<HttpReply> {
    if (request.path.find("partNumber=2") != std::string::npos) return http_reply(403, "");
    if (request.method == "DELETE" && !takes_delete) return http_reply(500, "");
    return {};
  });
  KeptIds ids;
  S3UploadOptions options = in_parts_of(4);
  options.ids = &ids;
  CHECK_THAT(error_of_upload(file.path, options), Contains("status 403"));
  CHECK(ids.ids == std::vector<std::string>{"u"});
  takes_delete = true;
  CHECK_THAT(error_of_upload(file.path, options), Contains("status 403"));
  CHECK(ids.ids.empty());
}
