// SPDX-License-Identifier: MIT
#include "net/s3/s3.h"

#include <catch2/catch.hpp>

#include "net/digest.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// Amazon's example: keys, time and bucket of the documents of Signature Version 4 for S3.
const S3Access kExample = {
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", "us-east-1", "", ""};
constexpr std::time_t kExampleTime = 1369353600;  // 2013-05-24T00:00:00Z
constexpr const char* kExampleHost = "examplebucket.s3.amazonaws.com";

std::string authorization(const std::map<std::string, std::string>& query) {
  const S3Request request{.query = query, .host = kExampleHost, .path = "/"};
  return sign_request(request, kExample, kExampleTime).back();
}

HttpOptions two_attempts() {
  HttpOptions options;
  options.stall_seconds = 0.4;
  options.attempts = 2;
  return options;
}

std::string get_object(HttpGet request) {
  HttpStream stream(std::move(request), two_attempts());
  std::string text, buffer(1000, '\0');
  while (const size_t size = stream.read(buffer.data(), buffer.size()))
    text.append(buffer, 0, size);
  return text;
}

std::string get_object(const std::string& url) {
  return get_object(s3_request(url));
}

std::string object_error_of(const std::string& url) {
  try {
    get_object(url);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_xml(const std::string& code, const std::string& more = "") {
  return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>Words of " + code +
         ".</Message>" + more + "</Error>";
}

}  // namespace

TEST_CASE("SHA-256 and HMAC give the digests of their standards") {
  CHECK(to_hex(sha256("abc")) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(to_hex(hmac_sha256(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("requests are signed as in Amazon's examples") {
  CHECK_THAT(authorization({{"lifecycle", ""}}),
             Contains("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543") &&
                 Contains("SignedHeaders=host;x-amz-content-sha256;x-amz-date,"));
  CHECK_THAT(authorization({{"prefix", "J"}, {"max-keys", "2"}}),
             Contains("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST_CASE("keys, region and endpoint are found where the AWS tools keep them") {
  const AwsEnvironment aws;
  CHECK(find_s3_access().is_anonymous());
  CHECK(find_s3_access().region == "us-east-1");
  aws.write("credentials",
            "[default]\naws_access_key_id = A1\naws_secret_access_key=S1=/+\n"
            "# comment\n[other]\naws_access_key_id=A2\naws_secret_access_key=S2\n"
            "aws_session_token = T2\n");
  aws.write("config",
            "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-central-1\n"
            "services = mine\n[services mine]\ns3 =\n  endpoint_url = http://localhost:9000/\n"
            "[profile sso]\nsso_session = x\n[profile half]\naws_access_key_id = A3\n");
  S3Access access = find_s3_access();
  CHECK(access.key_id == "A1");
  CHECK(access.secret == "S1=/+");
  CHECK(access.session_token.empty());
  CHECK(access.region == "eu-west-1");
  CHECK(access.endpoint.empty());
  aws.set("AWS_PROFILE", "other");
  access = find_s3_access();
  CHECK(access.secret == "S2");
  CHECK(access.session_token == "T2");
  CHECK(access.region == "eu-central-1");
  CHECK(access.endpoint == "http://localhost:9000");
  aws.set("AWS_ACCESS_KEY_ID", "A0");
  CHECK_THROWS_WITH(find_s3_access(),
                    Contains("the access key id") || Contains("without the secret"));
  aws.set("AWS_SECRET_ACCESS_KEY", "S0");
  aws.set("AWS_REGION", "ap-south-1");
  aws.set("AWS_ENDPOINT_URL_S3", "https://store/");
  access = find_s3_access();
  CHECK(access.key_id == "A0");
  CHECK(access.session_token.empty());
  CHECK(access.region == "ap-south-1");
  CHECK(access.endpoint == "https://store");
}

TEST_CASE("keys of one file are not completed by those of the other") {
  const AwsEnvironment aws;
  aws.write("credentials", "[default]\naws_access_key_id = A1\naws_secret_access_key = S1\n");
  aws.write("config", "[default]\naws_session_token = T9\nregion = eu-west-1\n");
  const S3Access access = find_s3_access();
  CHECK(access.key_id == "A1");
  CHECK(access.secret == "S1");
  CHECK(access.session_token.empty());
  CHECK(access.region == "eu-west-1");
}

TEST_CASE("keys that cannot be had are told with what to do") {
  const AwsEnvironment aws;
  aws.write("config", "[profile sso]\nsso_session = x\n[profile half]\naws_access_key_id = A3\n");
  aws.set("AWS_PROFILE", "sso");
  CHECK_THROWS_WITH(find_s3_access(), Contains("by sso_session") && Contains("export-credentials"));
  aws.set("AWS_PROFILE", "half");
  CHECK_THROWS_WITH(find_s3_access(), Contains("[half]") && Contains("without the secret"));
  aws.set("AWS_PROFILE", "gone");
  CHECK_THROWS_WITH(find_s3_access(), Contains("AWS_PROFILE is \"gone\""));
  unsetenv("AWS_PROFILE");
  aws.set("AWS_ENDPOINT_URL", "store:9000");
  CHECK_THROWS_WITH(find_s3_access(), Contains("\"store:9000\": expected http://HOST"));
}

TEST_CASE("objects are asked for by path or by host, with the right name") {
  const AwsEnvironment aws;
  CHECK(s3_request("s3://bucket/a b+c/%41é.tar").url ==
        "https://bucket.s3.us-east-1.amazonaws.com/a%20b%2Bc/%2541%C3%A9.tar");
  aws.set("AWS_REGION", "cn-north-1");
  CHECK(s3_request("s3://my.bucket/k").url == "https://s3.cn-north-1.amazonaws.com.cn/my.bucket/k");
  aws.set("AWS_ENDPOINT_URL", "http://host:80/base/");
  CHECK(s3_request("s3://bucket/k").url == "http://host/base/bucket/k");
  CHECK_THROWS_AS(s3_request("s3://bucket"), ConfigError);
  CHECK_THROWS_WITH(s3_request("s3:///key"), Contains("s3://BUCKET/KEY"));
}

TEST_CASE("an object comes whole over a bad network, signed at each attempt") {
  const AwsEnvironment aws;
  const std::string file(100'000, 'x');
  std::vector<std::map<std::string, std::string>> asked;
  LoopbackServer server([&](const HttpRequest& request) {
    asked.push_back(request.headers);
    const HttpReply reply = ranged_reply(request, file);
    return request.number == 1 ? cut_after(reply, 60'000) : reply;
  });
  aws.set("AWS_ENDPOINT_URL", server.url(""));
  aws.set("AWS_ACCESS_KEY_ID", "AKID");
  aws.set("AWS_SECRET_ACCESS_KEY", "very-secret");
  aws.set("AWS_SESSION_TOKEN", "very-secret-token");
  CapturedLog log;
  HttpGet get = s3_request("s3://bucket/a b.tar");
  int signatures = 0;
  get.sign = [&signatures, sign = get.sign] {
    ++signatures;
    return sign();
  };
  CHECK(get_object(get) == file);
  CHECK(signatures == 2);
  CHECK(server.requests("/bucket/a%20b.tar") == 2);
  REQUIRE(asked.size() == 2);
  CHECK(asked[1]["range"] == "bytes=60000-");
  CHECK(asked[1]["x-amz-security-token"] == "very-secret-token");
  CHECK_THAT(asked[1]["authorization"],
             Contains("AKID/") && Contains("/us-east-1/s3/aws4_request") &&
                 Contains("host;x-amz-content-sha256;x-amz-date;x-amz-security-token"));
  CHECK(log.count("s3://bucket/a b.tar: ") == 1);
  CHECK(log.count("very-secret") == 0);
}

TEST_CASE("anonymous requests are not signed") {
  const AwsEnvironment aws;
  std::map<std::string, std::string> asked;
  LoopbackServer server([&](const HttpRequest& request) {
    asked = request.headers;
    return ranged_reply(request, "text");
  });
  aws.set("AWS_ENDPOINT_URL", server.url(""));
  CHECK(get_object("s3://bucket/a") == "text");
  CHECK_FALSE(asked.contains("authorization"));
}

TEST_CASE("refusals of a store are explained, and nothing secret is told") {
  const AwsEnvironment aws;
  std::string body, headers;
  int status = 403;
  LoopbackServer server([&](const HttpRequest&) { return http_reply(status, body, headers); });
  aws.set("AWS_ENDPOINT_URL", server.url(""));
  CapturedLog log;
  body = error_xml("AccessDenied");
  CHECK_THAT(object_error_of("s3://b/k"),
             Contains("s3://b/k: the server answers with status 403") &&
                 Contains("AccessDenied: Words of AccessDenied") &&
                 Contains("no keys were found") && Contains("s3:GetObject"));
  aws.set("AWS_ACCESS_KEY_ID", "AKID");
  aws.set("AWS_SECRET_ACCESS_KEY", "very-secret");
  const std::vector<std::pair<std::string, std::string>> words = {
      {"AccessDenied", "the keys are those of AWS_ACCESS_KEY_ID"},
      {"InvalidAccessKeyId", "does not know these keys"},
      {"SignatureDoesNotMatch", "secret key does not belong"},
      {"RequestTimeTooSkewed", "clock of this machine"}};
  for (const auto& [code, text] : words) {
    body = error_xml(code, "<StringToSign>very-secret</StringToSign>");
    CHECK_THAT(object_error_of("s3://b/k"),
               Contains(code) && Contains(text) && !Contains("very-secret"));
  }
  body = "<Error><Code>X</Code><Message>your key very-secret\n is bad</Message></Error>";
  CHECK_THAT(object_error_of("s3://b/k"), Contains("your key ***  is bad"));
  status = 404;
  body = error_xml("NoSuchKey");
  CHECK_THAT(object_error_of("s3://b/k"), Contains("no such object"));
  body = error_xml("NoSuchBucket");
  CHECK_THAT(object_error_of("s3://b/k"), Contains("no such bucket"));
  status = 400;
  body = error_xml("ExpiredToken");
  CHECK_THAT(object_error_of("s3://b/k"), Contains("session token has expired"));
  body = error_xml("AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>");
  CHECK_THAT(object_error_of("s3://b/k"),
             Contains("in the region eu-west-3, us-east-1 was asked: set AWS_REGION=eu-west-3"));
  status = 301;
  headers = "x-amz-bucket-region: eu-north-1\r\nLocation: /elsewhere\r\n";
  body = error_xml("PermanentRedirect");
  CHECK_THAT(object_error_of("s3://b/k"), Contains("set AWS_REGION=eu-north-1"));
  CHECK(log.count("very-secret") == 0);
}

TEST_CASE("a folder is listed page by page, with odd names") {
  const AwsEnvironment aws;
  std::vector<std::string> asked;
  LoopbackServer server([&](const HttpRequest& request) {
    asked.push_back(request.path);
    const bool second = request.path.find("continuation-token=a%2Fb%3D") != std::string::npos;
    return http_reply(
        200,
        second
            ? "<R><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><Contents><Key>f/x+%26%2B.npy</Key></Contents></R>"
            : "<R><IsTruncated>true</IsTruncated>"
              "<NextContinuationToken>a/b=</NextContinuationToken>"
              "<Contents><Key>f/</Key></Contents>"
              "<Contents><Size>1</Size><Key>f/1+%20.npy</Key></Contents></R>");
  });
  aws.set("AWS_ENDPOINT_URL", server.url(""));
  CHECK(s3_list("s3://bucket/f/", two_attempts()) ==
        std::vector<std::string>{"1+%20.npy", "x &+.npy"});
  REQUIRE(asked.size() == 2);
  CHECK(asked[0] == "/bucket/?delimiter=%2F&encoding-type=url&list-type=2&prefix=f%2F");
}

TEST_CASE("a page of a store's listing gives its keys, whatever it breaks off in") {
  const S3Page page = parse_s3_page(
      "<R><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;lt;b</NextContinuationToken>"
      "<Contents><Key>f/&lt;1&gt;</Key></Contents><Contents><Key></Key></Contents>"
      "<Contents><Key>f/2</Key></Contents><Contents><Key>f/3</Key>");
  CHECK(page.keys == std::vector<std::string>{"f/<1>", "f/2"});
  CHECK_FALSE(page.is_last);
  CHECK(page.next_token == "a&lt;b");
  // Each beginning without an end would be looked for to the end of the page.
  std::string open;
  for (int i = 0; i < 2'000'000; ++i) open += "<Contents>";
  CHECK(parse_s3_page(open).keys.empty());
}

TEST_CASE("a store cannot list without an end") {
  const AwsEnvironment aws;
  int asked = 0;
  std::string body;
  LoopbackServer server([&](const HttpRequest&) {
    ++asked;
    return http_reply(200, body);
  });
  aws.set("AWS_ENDPOINT_URL", server.url(""));
  HttpOptions options = two_attempts();
  options.stall_seconds = 60;  // a page of 64 MiB takes a while where the machine is busy
  const auto list = [&] { return s3_list("s3://bucket/f/", options); };
  body =
      "<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
      "<Contents><Key>f/x</Key></Contents>";
  CHECK_THROWS_WITH(list(), Contains("s3://bucket/f/: the listing breaks off after 2 names"));
  CHECK(asked == 2);
  body = "<IsTruncated>true</IsTruncated>";
  CHECK_THROWS_WITH(list(), Contains("the listing breaks off after 0 names"));
  body = std::string(kMostPageBytes + 1, 'x');
  CHECK_THROWS_WITH(list(), Contains("s3://bucket/f/: the answer has more than 67108864 bytes"));
  body.clear();
  for (size_t i = 0; i <= kMostListedFiles; ++i) body += "<Contents><Key>f/x</Key></Contents>";
  CHECK_THROWS_WITH(list(), Contains("the listing continues after 1000001 names on 1 pages"));
}
