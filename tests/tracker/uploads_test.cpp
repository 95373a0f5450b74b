// SPDX-License-Identifier: MIT
// What waits for being sent: on the disk (Outbox), and on its way (Uploads).
#include "tracker/places/uploads.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/stop_signal.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

constexpr const char* kSaver = R"({"save_to": "url"})";

OutboxEntry entry(const std::string& target, const std::string& to = "there") {
  return {.path = {}, .to = to, .target = target, .kind = "checkpoint", .saver = kSaver};
}

/// An outbox beside a file that a run saves again and again.
struct Folder {
  test::TempDir dir;
  std::string file = dir / "checkpoint.pth", outbox = dir / "outbox";

  const std::string& save(const std::string& content) const {
    write_file_atomically(file, content);
    return file;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& item : fs::directory_iterator(outbox)) {
      found.push_back(item.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_CASE("what waits keeps its bytes whatever is saved later, and is there after a restart") {
  const Folder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(entry("a.pth"), folder.save("first"));
    folder.save("second");
  }
  const Outbox again(folder.outbox);
  REQUIRE(again.waiting().size() == 1);
  const OutboxEntry found = again.waiting().front();
  CHECK(read_file(found.path) == "first");
  CHECK(found.target == "a.pth");
  CHECK(found.to == "there");
  CHECK(found.kind == "checkpoint");
  CHECK(found.saver == R"({"save_to":"url"})");
  CHECK(found.bytes == 5);
}

TEST_CASE("a newer file for the same place replaces one that waits, not one that is being sent") {
  const Folder folder;
  Outbox outbox(folder.outbox);
  outbox.add(entry("a.pth"), folder.save("1"));
  outbox.add(entry("a.pth", "elsewhere"), folder.save("2"));
  const OutboxEntry sending = outbox.waiting().front();
  outbox.begin(sending);
  outbox.add(entry("a.pth"), folder.save("3"));
  outbox.add(entry("a.pth"), folder.save("4"));
  std::vector<std::string> contents;
  for (const OutboxEntry& waiting : outbox.waiting()) contents.push_back(read_file(waiting.path));
  CHECK(contents == std::vector<std::string>{"1", "2", "4"});
  // It failed: the newer one counts.
  outbox.end(sending, /*sent=*/false);
  CHECK(outbox.waiting().size() == 2);
  CHECK(folder.names().size() == 4);
}

TEST_CASE("a kill while a file is sent does not bring an older one back after the newer") {
  const Folder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(entry("a.pth"), folder.save("old"));
    outbox.begin(outbox.waiting().front());
    outbox.add(entry("a.pth"), folder.save("new"));
    outbox.add(entry("b.pth"), folder.save("other"));
    CHECK(outbox.waiting().size() == 3);
  }
  const Outbox again(folder.outbox);
  REQUIRE(again.waiting().size() == 2);
  CHECK(read_file(again.waiting().front().path) == "new");
  CHECK(folder.names().size() == 4);
}

TEST_CASE("what has another name in the folder is somebody else's, and stays") {
  const Folder folder;
  for (const char* name : {"letter.txt", "7.json", "notes.json", "1234567_x"}) {
    write_file_atomically(folder.outbox + "/" + name, "mine");
  }
  fs::create_directories(folder.outbox + "/00000003_folder");
  CHECK(Outbox(folder.outbox).waiting().empty());
  CHECK(folder.names() ==
        std::vector<std::string>{
            "00000003_folder", "1234567_x", "7.json", "letter.txt", "notes.json"});
}

TEST_CASE("what a kill left half done in an outbox is removed, and nothing else is ever sent") {
  const Folder folder;
  {
    Outbox outbox(folder.outbox);
    outbox.add(entry("whole.pth"), folder.save("whole"));
  }
  write_file_atomically(folder.outbox + "/00000007_checkpoint.pth", "no note");
  write_file_atomically(folder.outbox + "/00000008_checkpoint.pth.part", "half");
  write_file_atomically(folder.outbox + "/00000009.json", "{\"to\": \"there\", \"tar");
  write_file_atomically(
      folder.outbox + "/00000010.json",
      R"({"to": "there", "target": "t", "file": "../checkpoint.pth", "saver": {}})");
  write_file_atomically(folder.outbox + "/00000011.json",
                        R"({"to": "there", "target": "t", "file": "00000011_x", "saver": {}})");
  fs::create_symlink("/etc/hostname", folder.outbox + "/00000011_x");
  Outbox outbox(folder.outbox);
  REQUIRE(outbox.waiting().size() == 1);
  CHECK(outbox.waiting().front().target == "whole.pth");
  CHECK(folder.names() == std::vector<std::string>{"00000001.json", "00000001_checkpoint.pth"});
  CHECK(read_file(folder.file) == "whole");
  // Numbers go on behind all that were there.
  outbox.add(entry("next.pth"), folder.save("next"));
  CHECK(outbox.waiting().back().number == 12);
}

/// Of files that wait; what has a second name takes no space.
uint64_t bytes_in(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& item : fs::directory_iterator(folder)) {
    const bool takes_space = fs::hard_link_count(item.path()) == 1;
    if (takes_space && item.path().extension() != ".json") bytes += item.file_size();
  }
  return bytes;
}

TEST_CASE("a disk that is nearly full gives up the oldest files that take space, and names them") {
  const Folder folder;
  uint64_t disk = 1000;
  Outbox outbox(folder.outbox, [&](const std::string& path) {
    return std::optional<uint64_t>(disk - std::min(disk, bytes_in(path)));
  });
  const std::string content(100, 'x');
  std::vector<std::string> removed;
  const auto add = [&](const std::string& target) {
    removed.clear();
    for (const OutboxEntry& gone : outbox.add(entry(target), folder.save(content))) {
      removed.push_back(gone.target);
    }
  };
  const auto targets = [&] {
    std::vector<std::string> names;
    for (const OutboxEntry& waiting : outbox.waiting()) names.push_back(waiting.target);
    return names;
  };
  for (const char* target : {"a", "b", "c", "d"}) add(target);
  CHECK(removed.empty());
  CHECK(bytes_in(folder.outbox) == 300);  // the newest is checkpoint.pth, too
  // The next checkpoint needs room twice: 200 of 430. The oldest is being sent, the next one goes.
  outbox.begin(outbox.waiting().front());
  disk = 430;
  add("e");
  CHECK(removed == std::vector<std::string>{"b", "c"});
  CHECK(targets() == std::vector<std::string>{"a", "d", "e"});
  CHECK(folder.names().size() == 6);
  // What has a second name would free nothing by going, and the newest never goes.
  disk = 50;
  fs::create_hard_link(outbox.waiting()[1].path, folder.dir / "d.pth");
  add("f");
  CHECK(removed == std::vector<std::string>{"e"});
  CHECK(targets() == std::vector<std::string>{"a", "d", "f"});
}

/// A service of which a test decides when and how it answers.
class Service : public Destination {
 public:
  explicit Service(std::string name = "there") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  void check_access(const HttpCallOptions& /*options*/) override {}
  void know_template(const std::string& target) override { templates_.push_back(target); }
  const std::vector<std::string>& templates() const { return templates_; }
  void send(const FileToSend& file, const std::function<bool()>& cancelled) override {
    std::unique_lock lock(mutex_);
    ++calls_;
    changed_.notify_all();
    while (held_ && !cancelled()) changed_.wait_for(lock, std::chrono::milliseconds(5));
    if (cancelled()) throw NetworkError("cancelled");
    if (failures_ > 0) {
      --failures_;
      throw NetworkError("the service is out of order");
    }
    sent_.push_back(file.target + "=" + read_file(file.path));
    changed_.notify_all();
  }
  void hold(bool on) {
    const std::lock_guard lock(mutex_);
    held_ = on;
    changed_.notify_all();
  }
  void fail(int times) {
    const std::lock_guard lock(mutex_);
    failures_ = times;
  }
  std::vector<std::string> wait_for_sent(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return sent_.size() >= count; });
    return sent_;
  }
  void wait_for_calls(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return calls_ >= count; });
    CHECK(calls_ >= count);
  }

 private:
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int failures_ = 0, calls_ = 0;
  std::vector<std::string> sent_, templates_;
};

Recipient to(const std::shared_ptr<Service>& service) {
  return {service, [](const std::string&) { return std::string(kSaver); }};
}

FileToSend file_for(const std::string& target, const std::string& path) {
  return {.path = path, .target = target, .kind = "checkpoint"};
}

TEST_CASE("saves that come faster than they can be sent wait for nobody, and the newest is sent") {
  const Folder folder;
  const test::CapturedLog log;
  const auto service = std::make_shared<Service>();
  service->hold(true);
  Uploads uploads(folder.outbox);
  uploads.serve(to(service));
  uploads.begin();
  uploads.add("there", file_for("latest", folder.save("0")));
  service->wait_for_calls(1);  // on its way
  for (int i = 1; i < 10; ++i) {
    uploads.add("there", file_for("latest", folder.save(std::to_string(i))));
  }
  uploads.add("there", file_for("best", folder.save("best")));
  CHECK(uploads.waiting().size() == 3);
  service->hold(false);
  CHECK(service->wait_for_sent(3) == std::vector<std::string>{"latest=0", "best=best", "latest=9"});
  CHECK(uploads.finish(20) == 0);
  CHECK(folder.names().empty());
  CHECK(log.count("Saved checkpoint to there/latest") == 2);
}

TEST_CASE("a failed file is reported, waits, and is sent with the next one") {
  const Folder folder;
  const test::CapturedLog log;
  const auto service = std::make_shared<Service>();
  service->fail(1);
  Uploads uploads(folder.outbox);
  uploads.serve(to(service));
  uploads.begin();
  uploads.add("there", file_for("a", folder.save("a")));
  service->wait_for_calls(1);
  std::vector<std::string> errors;
  while (errors.empty()) errors = uploads.take_errors();
  CHECK(errors ==
        std::vector<std::string>{
            "Error saving checkpoint to there/a: the service is out of order\n  It waits in " +
            folder.outbox + "."});
  CHECK(uploads.waiting().size() == 1);
  uploads.add("there", file_for("b", folder.save("b")));
  CHECK(service->wait_for_sent(2).size() == 2);
  CHECK(uploads.finish(20) == 0);
  CHECK(uploads.take_errors().empty());
}

TEST_CASE(
    "the end waits for its deadline, says what it waits for, and leaves the rest on the disk") {
  const Folder folder;
  const test::CapturedLog log;
  const auto service = std::make_shared<Service>();
  service->hold(true);
  {
    Uploads uploads(folder.outbox);
    uploads.serve(to(service));
    uploads.begin();
    uploads.add("there", file_for("a", folder.save("a")));
    const auto begin = std::chrono::steady_clock::now();
    CHECK(uploads.finish(0.3) == 1);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    CHECK(passed.count() >= 0.3);
    CHECK(passed.count() < 5);
    CHECK(log.count("Sending 1 file (1 B) that waits, for 0.3 s at most") == 1);
    CHECK(uploads.take_errors().empty());
  }
  // The next start sends it.
  service->hold(false);
  Uploads again(folder.outbox);
  CHECK(again.unserved().size() == 1);
  again.serve(to(service));
  again.begin();
  CHECK(again.unserved().empty());
  CHECK(again.finish(20) == 0);
  CHECK(service->wait_for_sent(1) == std::vector<std::string>{"a=a"});
}

TEST_CASE("at the end each file is tried once more, and a refusal ends the wait") {
  const Folder folder;
  const test::CapturedLog log;
  const auto service = std::make_shared<Service>();
  service->fail(1000);
  Uploads uploads(folder.outbox);
  uploads.serve(to(service));
  uploads.begin();
  uploads.add("there", file_for("a", folder.save("a")));
  uploads.add("there", file_for("b", folder.save("b")));
  CHECK(uploads.finish(60) == 2);
  CHECK(uploads.waiting().size() == 2);
}

TEST_CASE("what is given up for want of space is an error of the run") {
  const Folder folder;
  const test::CapturedLog log;
  Uploads uploads(folder.outbox, [](const std::string&) { return std::optional<uint64_t>(0); });
  const auto service = std::make_shared<Service>();
  service->hold(true);
  uploads.serve(to(service));
  uploads.begin();
  for (const char* target : {"a", "b", "c"}) {
    uploads.add("there", file_for(target, folder.save(target)));
    if (uploads.waiting().size() == 1) service->wait_for_calls(1);  // on its way, and so it stays
  }
  CHECK(uploads.take_errors() ==
        std::vector<std::string>{"checkpoint b for there of 1 B was not sent and is removed: the "
                                 "disk of the outbox is nearly full"});
  CHECK(uploads.finish(0) == 2);
}

TEST_CASE("a slow service holds up no other one") {
  const Folder folder;
  const test::CapturedLog log;
  const auto slow = std::make_shared<Service>("slow"), quick = std::make_shared<Service>("quick");
  slow->hold(true);
  Uploads uploads(folder.outbox);
  uploads.serve(to(slow));
  uploads.serve(to(quick));
  uploads.begin();
  uploads.add("slow", file_for("a", folder.save("1")));
  uploads.add("quick", file_for("a", folder.save("2")));
  CHECK(quick->wait_for_sent(1) == std::vector<std::string>{"a=2"});
  CHECK(uploads.finish(0) == 1);
}

TEST_CASE("addresses that differ in their signature are two places, and it is not stored") {
  UrlSaveConfig config;
  config.save_latest_to = "https://h/p?signature=canary-a";
  const std::unique_ptr<Destination> begun = make_destination(config);
  const std::string a = begun->shown_target("https://h/p?signature=canary-a"),
                    b = begun->shown_target("https://h/p?signature=canary-b");
  CHECK(a != b);
  CHECK_THAT(a + b, !Contains("canary"));
  CHECK(begun->place_of(a) == "https://h/p");
  CHECK(begun->full_target(b) == "https://h/p?signature=canary-b");
  CHECK(begun->shown_target("https://h/q") == "https://h/q");
  // Another process does not send the file to what is left of the address.
  const std::unique_ptr<Destination> later = make_destination(config);
  CHECK_THROWS_WITH(later->full_target(a), Contains("a login or a signature, which is not stored"));
  CHECK(later->full_target("https://h/q") == "https://h/q");
}

TEST_CASE("a later start rebuilds whole addresses from its config, also those with placeholders") {
  for (const auto& [known, target] : std::vector<std::pair<std::string, std::string>>{
           {"https://u:canary@h/{epoch}.pth", "https://u:canary@h/3.pth"},
           {"https://u:ca/nary@h:81/{epoch}.pth", "https://u:ca/nary@h:81/3.pth"},
           {"https://h@h/{epoch}.pth", "https://h@h/3.pth"},  // a login like its host
           {"https://h/{epoch}/a.pth?sig=canary", "https://h/3/a.pth?sig=canary"},
           {"https://u:{{canary@h/{epoch}?a={{}}", "https://u:{canary@h/3?a={}"},
           {"https://u:canary@h/latest.pth?sig=1", "https://u:canary@h/latest.pth?sig=1"}}) {
    CAPTURE(known);
    const std::unique_ptr<Destination> begun = make_destination(UrlSaveConfig{});
    const std::string shown = begun->shown_target(target);
    const std::unique_ptr<Destination> later = make_destination(UrlSaveConfig{});
    later->know_template("https://u:other@h/{epoch}.pth");
    later->know_template("https://elsewhere/{epoch}.pth");
    CHECK_THROWS_WITH(later->full_target(shown), Contains("a login or a signature"));
    later->know_template(known);
    CHECK(later->full_target(shown) == target);
  }
}

TEST_CASE("savers that share a service share what their configs say of addresses") {
  const Folder folder;
  const test::CapturedLog log;
  const auto first = std::make_shared<Service>(), second = std::make_shared<Service>();
  Uploads uploads(folder.outbox);
  uploads.serve(to(first), {"a"});
  uploads.serve(to(second), {"b"});
  uploads.begin();
  CHECK(first->templates() == std::vector<std::string>{"a", "b"});
  CHECK(second->templates().empty());
}

}  // namespace
}  // namespace dalle2
