// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "net/digest.h"
#include "net/s3/s3.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// A store that takes parts and forgets an upload that is finished or taken away; `fault` may answer in its
/// place.
class Store {
 public:
  using Fault = std::function<std::optional<HttpReply>(const HttpRequest& request, Store& self)>;

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
  /// "PUT /b/k?partNumber=1&uploadId=u0".
  std::vector<std::string> lines() {
    std::vector<std::string> lines;
    for (const HttpRequest& request : requests())
      lines.push_back(request.method + " " + request.path);
    return lines;
  }
  /// How many requests began so.
  int count(const std::string& line) {
    const std::vector<std::string> all = lines();
    return static_cast<int>(std::count_if(
        all.begin(), all.end(), [&](const std::string& it) { return it.starts_with(line); }));
  }
  /// Puts the parts together, though no answer says so.
  void finish() {
    object_ = whole_;
    upload_.clear();
  }
  void forget() { upload_.clear(); }
  std::string object() const { return object_; }

  bool is_old = false;  ///< the object was there before

 private:
  HttpReply answer(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
    if (fault_) {
      if (const auto reply = fault_(request, *this)) return *reply;
    }
    const std::string date = "Date: Sun, 06 Nov 2044 08:49:37 GMT\r\n";
    if (request.method == "HEAD") {
      if (object_.empty()) return {"HTTP/1.1 404 No\r\n\r\n"};
      return {"HTTP/1.1 200 Yes\r\nContent-Length: " + std::to_string(object_.size()) +
              "\r\nETag: \"x-3\"\r\nLast-Modified: " +
              (is_old ? "Sun, 06 Nov 2044 08:47:37 GMT" : "Sun, 06 Nov 2044 08:49:36 GMT") +
              "\r\n\r\n"};
    }
    if (request.path.ends_with("?uploads=")) {
      upload_ = "u" + std::to_string(uploads_++);
      whole_.clear();
      return http_reply(200, "<R><UploadId>" + upload_ + "</UploadId></R>", date);
    }
    const bool is_known = !upload_.empty() && request.path.ends_with("uploadId=" + upload_);
    if (request.path.find("uploadId=") != std::string::npos && !is_known) {
      return http_reply(404, "<Error><Code>NoSuchUpload</Code></Error>");
    }
    if (request.method == "POST") return finish(), http_reply(200, "<R><ETag>\"all\"</ETag></R>");
    whole_ += request.body;
    return http_reply(200, "", "ETag: \"" + std::to_string(request.body.size()) + "\"\r\n");
  }

  const Fault fault_;
  std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::string upload_, whole_, object_;
  int uploads_ = 0;
  LoopbackServer server_;
};

S3UploadOptions in_parts_of(int64_t bytes) {
  S3UploadOptions options;
  options.http.stall_seconds = 0.4;
  options.part_bytes = bytes;
  return options;
}

/// A part of an upload.
bool is_part(const HttpRequest& request, int number) {
  return request.path.find("partNumber=" + std::to_string(number) + "&") != std::string::npos;
}

bool is_complete(const HttpRequest& request) {
  return request.method == "POST" && request.path.find("uploadId=") != std::string::npos;
}

/// Of an upload that nobody continues.
UploadNotes& no_notes() {
  static UploadNotes notes;
  return notes = {};
}

struct File {
  TempDir folder;
  std::string path = folder / "f.pth";
  explicit File(const std::string& content) { std::ofstream(path) << content; }
};

/// A file of three parts of 4 bytes, the last a short one, where nobody's keys are.
struct LargeFile : File {
  AwsEnvironment environment;
  CapturedLog log;
  LargeFile() : File("0123456789") {}
  void upload(UploadNotes& notes = no_notes()) const {
    s3_upload(path, "s3://b/k", notes, in_parts_of(4));
  }
  std::string error_of_upload(UploadNotes& notes = no_notes()) const {
    try {
      upload(notes);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
};

}  // namespace

TEST_CASE("a small file is one object, with the hash of its bytes signed") {
  const AwsEnvironment environment;
  Store store;
  const File file("twelve bytes");
  s3_upload(file.path, "s3://b/a folder/k", no_notes(), in_parts_of(12));
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
  s3_upload(file.path, "s3://b/k", no_notes(), in_parts_of(4));
  CHECK(store.lines() == std::vector<std::string>{"POST /b/k?uploads=",
                                                  "PUT /b/k?partNumber=1&uploadId=u0",
                                                  "PUT /b/k?partNumber=2&uploadId=u0",
                                                  "PUT /b/k?partNumber=3&uploadId=u0",
                                                  "POST /b/k?uploadId=u0"});
  const std::vector<HttpRequest> requests = store.requests();
  CHECK(requests[1].body + requests[2].body + requests[3].body == "0123456789a");
  CHECK(requests[3].body == "89a");
  CHECK(requests[3].headers.at("x-amz-content-sha256") == to_hex(sha256("89a")));
  CHECK(requests[4].body ==
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"4\"</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>\"4\"</ETag></Part>"
        "<Part><PartNumber>3</PartNumber><ETag>\"3\"</ETag></Part></CompleteMultipartUpload>");
}

TEST_CASE("an upload that is refused says why without the key") {
  const LargeFile file;
  Store refusing([](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (request.path.find("partNumber=2") == std::string::npos) return {};
    return http_reply(403, "<Error><Code>AccessDenied</Code><Message>canary</Message></Error>");
  });
  const std::string refused = file.error_of_upload();
  CHECK_THAT(refused,
             Contains("s3://b/k: the server answers with status 403") &&
                 Contains("AccessDenied: ***. Give keys that may write there (s3:PutObject)") &&
                 !Contains("canary"));
}

TEST_CASE("a fault that a store tells with status 200 is a fault") {
  const LargeFile file;
  Store store([](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (!is_complete(request)) return {};
    return http_reply(200, "<Error><Code>EntityTooSmall</Code></Error>");
  });
  CHECK_THAT(file.error_of_upload(),
             Contains("s3://b/k: the store does not put the parts together: EntityTooSmall"));
  CHECK(store.count("PUT") == 6);  // once more, in an upload of its own
}

TEST_CASE(
    "the bucket is asked for at the start: a refused key ends it, no leave to list does not") {
  const AwsEnvironment environment;
  std::string code = "AccessDenied";
  Store store([&](const HttpRequest&, Store&) -> std::optional<HttpReply> {
    return http_reply(403, "<Error><Code>" + code + "</Code></Error>");
  });
  CHECK_NOTHROW(s3_check_bucket("s3://b/runs"));
  CHECK(store.lines() == std::vector<std::string>{"GET /b/?list-type=2&max-keys=0"});
  code = "InvalidAccessKeyId";
  CHECK_THROWS_WITH(s3_check_bucket("s3://b/runs"), Contains("The store does not know these keys"));
}

TEST_CASE("an upload that broke off goes on with the next part, in another process too") {
  const LargeFile file;
  bool is_away = true;
  Store store([&](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (is_away && is_part(request, 3)) return http_reply(503, "");
    return {};
  });
  UploadNotes kept;
  CHECK_THAT(file.error_of_upload(kept), Contains("status 503, after"));
  CHECK_THAT(kept.text, !Contains("canary"));
  is_away = false;
  file.upload(kept);
  CHECK(store.object() == "0123456789");
  CHECK(store.count("POST /b/k?uploads=") == 1);
  for (const char* number : {"1", "2"}) {
    CHECK(store.count(std::string("PUT /b/k?partNumber=") + number) == 1);
  }
  CHECK(kept.text.empty());
}

TEST_CASE("notes that are no JSON, or not of an upload, begin a new one") {
  const LargeFile file;
  Store store;
  UploadNotes kept;
  for (const char* strange : {"{", "[1]", R"({"upload_id": "u9"})", R"({"upload_id": 9})"}) {
    kept.text = strange;
    file.upload(kept);
    CHECK(store.object() == "0123456789");
  }
  CHECK(store.count("POST /b/k?uploads=") == 4);
}

TEST_CASE("the parts of an upload keep their size, whatever a later version would choose") {
  const LargeFile file;
  bool is_away = true;
  Store store([&](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (is_away && is_part(request, 2)) return http_reply(403, "");
    return {};
  });
  UploadNotes kept;
  file.error_of_upload(kept);
  is_away = false;
  s3_upload(file.path, "s3://b/k", kept, in_parts_of(6));
  CHECK(store.object() == "0123456789");
  CHECK(store.count("PUT") == 4);
}

TEST_CASE("a store that has forgotten an upload gets all its parts again") {
  const LargeFile file;
  bool forgets = true;
  Store store([&](const HttpRequest& request, Store& self) -> std::optional<HttpReply> {
    if (is_part(request, 3) && std::exchange(forgets, false)) self.forget();
    return {};
  });
  file.upload();
  CHECK(store.object() == "0123456789");
  CHECK(store.count("POST /b/k?uploads=") == 2);
  CHECK(file.log.count("NoSuchUpload. The store has no such upload any more: begin it again") == 1);
}

TEST_CASE("white space from a store at work is life, however slow") {
  const LargeFile file;
  Store store([&](const HttpRequest& request, Store& self) -> std::optional<HttpReply> {
    if (!is_complete(request)) return {};
    self.finish();
    HttpReply reply = http_reply(200, std::string(12, ' ') + "<R><ETag>\"all\"</ETag></R>");
    reply.piece = 1;
    reply.pause_ms = 60;  // 17 bytes/s for more than two seconds
    return reply;
  });
  file.upload();
  CHECK(file.log.count("attempt") == 0);
  CHECK(store.count("POST /b/k?uploadId") == 1);
}

TEST_CASE("an object whose answer was lost is looked for before anything is sent again") {
  const LargeFile file;
  bool loses = true;
  Store store([&](const HttpRequest& request, Store& self) -> std::optional<HttpReply> {
    if (!is_complete(request) || !std::exchange(loses, false)) return {};
    self.finish();
    return HttpReply{};
  });
  file.upload();
  CHECK(store.count("HEAD /b/k") == 1);
  CHECK(store.count("PUT") == 3);
  // An object of the same size and parts that was there before is not this one.
  loses = true;
  store.is_old = true;
  file.upload();
  CHECK(store.count("HEAD /b/k") == 2);
  CHECK(store.count("PUT") == 9);
}

TEST_CASE("a store that fails while it puts the parts together is asked again") {
  const LargeFile file;
  int asked = 0;
  Store store([&](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (!is_complete(request) || ++asked > 2) return {};
    return http_reply(200, "<Error><Code>InternalError</Code></Error>");
  });
  file.upload();
  CHECK(store.object() == "0123456789");
  CHECK(file.log.count("InternalError; attempt") == 2);
}

TEST_CASE("each attempt of a part is signed anew") {
  const LargeFile file;
  Store store([&](const HttpRequest& request, Store&) -> std::optional<HttpReply> {
    if (request.number > 1) return {};
    AwsEnvironment::set("AWS_ACCESS_KEY_ID", "next");  // as if it were the time
    return http_reply(503, "");
  });
  s3_upload(file.path, "s3://b/k", no_notes(), in_parts_of(100));
  const std::vector<HttpRequest> requests = store.requests();
  REQUIRE(requests.size() == 2);
  CHECK_THAT(requests[0].headers.at("authorization"), Contains("Credential=id/"));
  CHECK_THAT(requests[1].headers.at("authorization"), Contains("Credential=next/"));
}
