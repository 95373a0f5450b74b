// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "net/digest.h"
#include "net/hub/hub_api.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/temp_dir.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

namespace {

/// Hub and store in one: it keeps one file of 10 bytes in parts of 4. `fault` may answer in its place.
class LfsHub {
 public:
  using Fault = std::function<std::optional<HttpReply>(const std::string& step)>;

  explicit LfsHub(Fault fault = nullptr)
      : fault_(std::move(fault)),
        server_([this](const HttpRequest& request) { return answer(request); }) {
    std::ofstream(path_) << "0123456789";
  }

  void grow_to(uint64_t bytes) const { std::filesystem::resize_file(path_, bytes); }
  void upload() {
    HttpOptions options;
    options.stall_seconds = 0.4;
    options.attempts = 2;
    const HubAccess access{.endpoint = server_.url(""), .token = "hf_canary", .source = "a test"};
    HubRepository(access, {.repo = "me/repo"}, options)
        .upload({.local_path = path_, .path = "f.pth", .summary = "s"}, notes);
  }
  std::string error_of_upload() {
    try {
      upload();
    } catch (const NetworkError& error) {
      return (may_pass(error) ? "away: " : "refused: ") + std::string(error.what());
    }
    return "no error";
  }
  int count(const std::string& step) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::count(steps_.begin(), steps_.end(), step));
  }

  bool is_stored = false, is_committed = false;
  UploadNotes notes;

 private:
  static std::string step_of(const HttpRequest& request) {
    for (const char* step : {"preupload",
                             "paths-info",
                             "revision",
                             "batch",
                             "part1",
                             "part2",
                             "part3",
                             "complete",
                             "verify",
                             "commit"}) {
      if (request.path.find(step) != std::string::npos) return step;
    }
    return request.path;
  }
  HttpReply answer(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    const std::string step = step_of(request), oid = to_hex(sha256("0123456789"));
    steps_.push_back(step);
    if (step.starts_with("part") || step == "complete") {
      CHECK(request.headers.count("authorization") == 0);
    }
    if (fault_) {
      if (const auto reply = fault_(step)) return *reply;
    }
    if (step == "preupload") return json(R"({"files": [{"path": "f.pth", "uploadMode": "lfs"}]})");
    if (step == "paths-info" && !is_committed) return json("[]");
    if (step == "paths-info") {
      return json(R"([{"type": "file", "path": "f.pth", "size": 10, "lfs": {"oid": ")" + oid +
                  "\"}}]");
    }
    if (step == "revision") return json(R"({"sha": "0"})");
    if (step == "commit") is_committed = true;
    if (step == "commit") return json(R"({"commitOid": "1"})");
    if (step == "complete") is_stored = true;
    if (step.starts_with("part")) return http_reply(200, "", "ETag: \"" + step + "\"\r\n");
    if (step != "batch") return json("{}");
    if (is_stored) return json(R"({"objects": [{"oid": "x"}]})");
    const auto href = [&](const std::string& name) {
      return "\"" + server_.url("/" + name) + "\"";
    };
    return json(R"({"objects": [{"oid": "x", "actions": {"upload": {"href": )" + href("complete") +
                R"(, "header": {"chunk_size": "4", "1": )" + href("part1") + R"(, "2": )" +
                href("part2") + R"(, "3": )" + href("part3") + R"(}}, "verify": {"href": )" +
                href("verify") + "}}}]}");
  }
  static HttpReply json(const std::string& body) { return http_reply(200, body); }

  const TempDir folder_;
  const std::string path_ = folder_ / "f.pth";
  const Fault fault_;
  std::mutex mutex_;
  std::vector<std::string> steps_;
  LoopbackServer server_;
};

}  // namespace

TEST_CASE("a large file goes to the hub in parts, is verified and committed") {
  LfsHub hub;
  hub.upload();
  for (const char* step : {"batch", "part1", "part2", "part3", "complete", "verify", "commit"}) {
    CHECK(hub.count(step) == 1);
  }
  CHECK(hub.is_committed);
}

TEST_CASE("parts that the hub's store has are not sent again after a fault") {
  const CapturedLog log;
  bool is_away = true;
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (is_away && step == "part3") return http_reply(503, "");
    return {};
  });
  CHECK_THAT(hub.error_of_upload(), Contains("away: ") && Contains("status 503"));
  is_away = false;
  hub.upload();
  CHECK(hub.is_committed);
  CHECK(hub.count("batch") == 1);
  CHECK(hub.count("part1") == 1);
  CHECK(hub.count("part2") == 1);
  CHECK(hub.notes.text.empty());
}

TEST_CASE("new addresses are asked for if those of the notes have expired") {
  const CapturedLog log;
  int refused = 0;
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (step != "part2" || ++refused > 1) return {};
    return http_reply(403, "");
  });
  hub.upload();
  CHECK(hub.is_committed);
  CHECK(hub.count("batch") == 2);
  CHECK(hub.count("part1") == 2);
}

TEST_CASE("an LFS upload whose answer was lost is not sent again") {
  const CapturedLog log;
  LfsHub* self = nullptr;
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (step != "complete") return {};
    if (self->is_stored) return http_reply(404, "");
    self->is_stored = true;
    return HttpReply{};
  });
  self = &hub;
  hub.upload();
  CHECK(hub.is_committed);
  CHECK(hub.count("part1") == 1);
}

TEST_CASE("a commit whose answer was lost is looked for before it is made again") {
  const CapturedLog log;
  LfsHub* self = nullptr;
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (step != "commit" || self->is_committed) return {};
    self->is_committed = true;
    return HttpReply{};
  });
  self = &hub;
  hub.upload();
  CHECK(hub.count("commit") == 1);
}

TEST_CASE("an answer to a commit that names none does not count") {
  const CapturedLog log;
  std::string body;
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (step == "commit") return http_reply(200, body);
    return {};
  });
  body = "<html>log in</html>";
  CHECK_THAT(hub.error_of_upload(), Contains("away: ") && Contains("names no commit"));
  CHECK_FALSE(hub.is_committed);
}

TEST_CASE("a file that the hub wants within a commit has at most 10 MiB") {
  LfsHub hub([&](const std::string& step) -> std::optional<HttpReply> {
    if (step != "preupload") return {};
    return http_reply(200, R"({"files": [{"path": "f.pth", "uploadMode": "regular"}]})");
  });
  hub.grow_to((10 << 20) + 1);
  CHECK_THAT(
      hub.error_of_upload(),
      Contains("refused: ") &&
          Contains("wants the file within a commit, without Git LFS, which takes at most 10 MiB"));
  CHECK(hub.count("commit") == 0);
  hub.grow_to(10 << 20);
  hub.upload();
  CHECK(hub.is_committed);
  CHECK(hub.count("batch") == 0);
}
