// SPDX-License-Identifier: MIT
// Savers that send to a service: what a start asks it, how a file gets there, what a failed one costs.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/clean_environment.h"
#include "support/loopback_server.h"
#include "support/seconds_of.h"
#include "tracker/places/copies.h"
#include "tracker/places/uploads.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

using Catch::Contains;
using std::chrono::steady_clock;
using test::http_reply;
using test::HttpRequest;
using test::LoopbackServer;

/// A web server that takes files where their folder is, and notes what it was asked.
struct FileServer {
  bool knows_folders = true;
  int put_status = 201;
  std::mutex mutex;
  std::vector<std::string> asked;
  std::set<std::string> folders = {"/"};
  LoopbackServer server{[this](const HttpRequest& request) { return answer(request); }};

  test::HttpReply answer(const HttpRequest& request) {
    const std::lock_guard lock(mutex);
    asked.push_back(request.method + " " + request.path);
    if (request.method == "OPTIONS") return http_reply(200, "");
    const bool is_there = folders.contains(request.path.substr(0, request.path.rfind('/') + 1));
    if (request.method == "PUT") {
      return http_reply(knows_folders && !is_there ? 409 : put_status, "");
    }
    if (!knows_folders) return http_reply(501, "");
    folders.insert(request.path);
    return http_reply(is_there ? 405 : 201, "");
  }
  UrlSaveConfig saver(const std::string& login = "") const {
    UrlSaveConfig config;
    std::string url = server.url("/dav");
    config.url = url.insert(url.find("://") + 3, login);
    config.save_latest_to = "run/latest.pth";
    return config;
  }
  long count(const std::string& what) {
    const std::lock_guard lock(mutex);
    return std::count(asked.begin(), asked.end(), what);
  }
};

void send_to(const UrlSaveConfig& config, const std::string& target) {
  const test::TempDir dir;
  write_file_atomically(dir / "f", "content");
  UploadNotes notes;
  make_destination(config)->send(
      {.path = dir / "f", .target = target, .kind = "checkpoint"}, notes, {.ends_at_stop = false});
}

TEST_CASE("folders that a WebDAV server lacks are made before a file is sent") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  FileServer server;
  send_to(server.saver(), "a/b/f");
  CHECK(server.asked == std::vector<std::string>{
                            "MKCOL /dav/", "MKCOL /dav/a/", "MKCOL /dav/a/b/", "PUT /dav/a/b/f"});
  send_to(server.saver(), "a/b/g");  // where they are there
  CHECK(server.count("PUT /dav/a/b/g") == 1);
}

TEST_CASE("a folder that a server refuses to make for any reason does not keep a file from it") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  for (const int status : {501, 423}) {  // one that knows only PUT
    std::vector<std::string> asked;
    const LoopbackServer server([&](const HttpRequest& request) {
      asked.push_back(request.method);
      return http_reply(request.method == "MKCOL" ? status : 201, "");
    });
    UrlSaveConfig config;
    config.url = server.url("/a");
    send_to(config, "f");
    CHECK(asked == std::vector<std::string>{"MKCOL", "PUT"});
  }
}

TEST_CASE("the query of a signed address stands behind each file, and nothing else is asked") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  FileServer server;
  server.knows_folders = false;
  UrlSaveConfig config = server.saver();
  config.url += "/?sig=canary";
  send_to(config, "f");
  CHECK(server.asked == std::vector<std::string>{"PUT /dav/f?sig=canary"});
}

TEST_CASE("a login that ends the address is refused, and no part of it is shown") {
  UrlSaveConfig config;
  config.url = "https://me:can?ary@h.example/x";
  CHECK_THROWS_WITH(make_destination(config),
                    "/tracker/save/url: https://h.example/x: a \"?\" in a login ends the address.\n"
                    "  Write it as %3F, or put the login into ~/.netrc.");
}

TEST_CASE("the questions of a start share one deadline, and who asks to wait is away") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  const test::CapturedLog log;
  const LoopbackServer server(
      [](const HttpRequest&) { return http_reply(429, "", "Retry-After: 100\r\n"); });
  const LoopbackServer refusing([](const HttpRequest&) { return http_reply(401, ""); });
  UrlSaveConfig config;
  config.save_latest_to = "l.pth";
  config.url = server.url("/a");
  RunFolder folder("data", test::read_facts, {.keep_last = 1});
  const Copies copies({config, config, config}, test::placeholders(), folder);
  const double seconds = test::seconds_of(
      [&] { copies.check_access(steady_clock::now() + std::chrono::milliseconds(300)); });
  CHECK(seconds < 10);
  CHECK(log.count("The run continues: what it saves waits in its data_path until") == 3);
  config.url = refusing.url("/a");
  CHECK_THROWS_AS(Copies({config}, test::placeholders(), folder)
                      .check_access(steady_clock::now() + std::chrono::hours(1)),
                  NetworkError);
}

/// The config of a run in its folder.
void put_config(const std::string& url) {
  test::put("data/decoder_config.json",
            fmt::format(R"({{"tracker": {{"save": {{"save_to": "url", "url": "{}", )"
                        R"("save_latest_to": "run/{{epoch}}.pth"}}}}}})",
                        url));
}

TEST_CASE(
    "an upload that failed leaves its run finished, and sync sends it, once the run has ended") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  FileServer server;
  server.put_status = 403;
  test::Run run;
  run.config.save = {server.saver()};
  run.config.upload_deadline_seconds = 20;
  auto tracker = run.start();
  test::save(*tracker, 10);
  tracker->finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
  CHECK(run.log.count("Error saving checkpoint to ") > 0);
  tracker->finish_as("everything");
  CHECK(tracker->finished_as() == "everything");
  put_config(server.saver().url);
  const double seconds = test::seconds_of([] {
    CHECK_THROWS_WITH(sync_run("data"), Contains("A run that works there sends by itself"));
  });
  CHECK(seconds < 5);
  tracker.reset();
  {
    // Another place in the config gets nothing.
    put_config(server.server.url("/renamed"));
    const SyncReport report = sync_run("data");
    CHECK(report.sent == 0);
    CHECK(report.left == 1);
    REQUIRE(report.errors.size() == 1);
    CHECK_THAT(report.errors.front(), Contains("no saver of the run's config leads there"));
    CHECK_THAT(report.errors.front(), Contains("To give it up, remove its files from outbox/."));
    CHECK(server.count("PUT /renamed/run/latest.pth") == 0);
  }
  {
    // Savers that cannot be read are reported.
    test::put("data/decoder_config.json", R"({"tracker": {"save": {"save_to": "floppy"}}})");
    const SyncReport report = sync_run("data");
    CHECK(report.left == 1);
    REQUIRE(report.errors.size() == 2);
    CHECK_THAT(report.errors.back(), Contains("/tracker/save") && Contains("floppy"));
  }
  server.put_status = 201;
  put_config(server.saver().url);
  const SyncReport report = sync_run("data");
  CHECK(report.sent == 1);
  CHECK(report.errors.empty());
  CHECK(std::filesystem::is_empty("data/outbox"));
}

/// A run whose TensorBoard has all rows a second before its upload is answered.
struct LateRun : test::Run {
  const test::CleanEnvironment environment = test::CleanEnvironment({"http_proxy", "all_proxy"});
  std::atomic<int> put_status = 403;
  LoopbackServer server{[this](const HttpRequest& request) {
    if (request.method != "PUT") return http_reply(200, "");
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return http_reply(put_status, "");
  }};

  LateRun() {
    TensorboardLogConfig board;
    board.auto_resume = true;
    config.log = LogConfig(board);
    UrlSaveConfig saver;
    saver.url = server.url("/a");
    saver.save_latest_to = "l.pth";
    config.save = {saver};
    config.upload_deadline_seconds = 20;
  }
  static void end(Tracker& tracker) {
    tracker.finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
  }
};

TEST_CASE("an error after the last row was sent is counted, and sent by the next start") {
  LateRun run;
  {
    const auto tracker = run.start();
    test::save(*tracker, 10);
    tracker->log({{"loss", 0.5}}, 1);
    LateRun::end(*tracker);
  }
  CHECK(run.log.count("TensorBoard (1 row), 1 file in data/outbox could not be sent") == 1);
  CHECK_THAT(test::file("data/log.jsonl"), Contains("Error saving checkpoint to http"));
  run.put_status = 201;
  LateRun::end(*run.start());
  std::string events;
  for (const auto& file : std::filesystem::directory_iterator("data/tensorboard"))
    events += read_file(file.path().string());
  CHECK_THAT(events, Contains("Error saving checkpoint to http"));
  CHECK(std::filesystem::is_empty("data/outbox"));
}

TEST_CASE("an error after another start has taken the run over is reported, and not logged") {
  LateRun run;
  const auto tracker = run.start();
  test::save(*tracker, 10);
  nlohmann::json record = test::record_of();
  record["token"] = "another";
  test::put("data/run.json", record.dump());
  const std::string log = test::file("data/log.jsonl");
  LateRun::end(*tracker);
  CHECK(run.log.count("Error saving checkpoint to http") > 0);
  CHECK(test::file("data/log.jsonl") == log);
  CHECK(run.log.count("TensorBoard (") == 0);
}

TEST_CASE("what needs a login that is not stored waits for a start of the run") {
  const test::CleanEnvironment environment({"http_proxy", "all_proxy"});
  FileServer server;
  server.put_status = 403;
  test::ResumingRun run;
  run.config.save = {server.saver("user:canary@")};
  auto tracker = run.start();
  test::save(*tracker, 10);
  tracker->finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
  tracker.reset();
  CHECK_THAT(test::file("data/outbox/00000001.json"), !Contains("canary"));
  server.put_status = 201;
  put_config(server.saver().url);
  const SyncReport report = sync_run("data");
  REQUIRE(report.errors.size() == 1);
  CHECK_THAT(report.errors.front(), Contains("which is not stored, a start sends it"));
  const long before = server.count("PUT /dav/run/latest.pth");
  tracker = run.start();
  tracker->finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
  CHECK(server.count("PUT /dav/run/latest.pth") == before + 1);
  CHECK(std::filesystem::is_empty("data/outbox"));
}

}  // namespace
}  // namespace dalle2
